// Codes of eight and of four bits: figures rounded to them, and what they stand for. Formats are those of Micikevicius
// et al. 2022 (arXiv:2209.05433), table 1, and of the Open Compute Project's "Microscaling formats (MX) specification"
// 1.0, table 5; what is too large becomes the largest, for a scale that is out of date must not make a NaN.

constexpr int DIGITS_E4M3 = 3, BIAS_E4M3 = 7;
constexpr int DIGITS_E5M2 = 2, BIAS_E5M2 = 15;
constexpr int DIGITS_E2M1 = 1, BIAS_E2M1 = 1;
constexpr float MOST_E4M3 = 448.0f, MOST_E5M2 = 57344.0f, MOST_E2M1 = 6.0f;
constexpr unsigned char NO_NUMBER = 0x7f;  // of both formats of eight bits

// The larger one; no number where one of them is none.
__device__ inline float larger(float a, float b) { return a != a || a > b ? a : b; }

// Rounded to the nearest, halves to even; the sign is the highest of eight bits.
template <int DIGITS, int BIAS>
__device__ inline unsigned char code_of(float value, float most) {
  const float size = fminf(fabsf(value), most);
  if (!(value == value)) return NO_NUMBER;
  const unsigned sign = copysignf(1.0f, value) < 0.0f ? 0x80 : 0;
  int exponent;
  frexpf(size, &exponent);  // size = [1/2, 1) 2^exponent, or 0
  const bool subnormal = size == 0.0f || exponent - 1 < 1 - BIAS;
  const int place = (subnormal ? 1 - BIAS : exponent - 1) - DIGITS;
  const int steps = static_cast<int>(rintf(ldexpf(size, -place)));  // of the last place; 0 to twice 2^DIGITS
  const int field = place + DIGITS + BIAS - 1;  // the steps' own highest bit adds the last one to it
  return static_cast<unsigned char>(sign | ((field << DIGITS) + steps));
}

// What a code stands for, no number where it is none; the highest of eight bits is the sign. INFINITE: of the codes with
// the largest exponent, the first is infinite and the others are no numbers.
template <int DIGITS, int BIAS, bool INFINITE>
__device__ inline float figure_of(unsigned char code) {
  const int bits = code & 0x7f, field = bits >> DIGITS, digits = bits & ((1 << DIGITS) - 1);
  const int steps = field ? digits + (1 << DIGITS) : digits;
  float size = ldexpf(static_cast<float>(steps), (field ? field : 1) - BIAS - DIGITS);
  const bool last = field == 0x7f >> DIGITS;
  if (INFINITE ? last && digits : bits == NO_NUMBER) size = nanf("");
  if (INFINITE && last && !digits) size = 1.0f / 0.0f;
  return code & 0x80 ? -size : size;
}
