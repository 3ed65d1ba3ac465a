"use strict";
// What a reader does with a report: every button, a drag, a double click, the pointer over a row, the wheel, the keys.

for (const button of document.querySelectorAll("#timeline button")) button.click();
const rows = document.querySelectorAll("#timeline canvas")[1], frame = rows.getBoundingClientRect();
const at = (share, more = {}) => ({
  clientX: frame.left + share * frame.width, clientY: frame.top + 10, bubbles: true, ...more,
});
rows.setPointerCapture = () => {}; // there is no such pointer
for (const kind of ["pointerdown", "pointermove", "pointerup", "dblclick"]) {
  rows.dispatchEvent(new PointerEvent(kind, at(kind === "pointermove" ? 0.4 : 0.5)));
}
rows.dispatchEvent(new WheelEvent("wheel", at(0.5, { deltaY: -1, ctrlKey: true })));
for (const key of ["ArrowLeft", "ArrowRight", "+", "-", "0"]) rows.dispatchEvent(new KeyboardEvent("keydown", { key }));
let told = 0;
for (let share = 0.2; share < 1; share += 0.01) {
  rows.dispatchEvent(new PointerEvent("pointermove", at(share)));
  if (!document.getElementById("tip").hidden) told += 1;
}
document.querySelector("#memory select").dispatchEvent(new Event("change"));
window.dispatchEvent(new Event("resize"));
document.body.dataset.told = told;
