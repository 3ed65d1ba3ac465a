// Stands in for CUDA's header of this name: see cuda_on_host.h.
#pragma once
#include "cuda_on_host.h"
