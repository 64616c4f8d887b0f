// Light, dark, or as the system says.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "virga-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function kept(): Theme {
  try {
    const t = localStorage.getItem(KEY);
    return t === "light" || t === "dark" ? t : "system";
  } catch {
    return "system"; // storage is forbidden here
  }
}

export const theme = signal<Theme>(kept());
export const shown = signal<"light" | "dark">("light");

function apply() {
  shown.value = theme.value === "system" ? (dark.matches ? "dark" : "light") : theme.value;
  document.documentElement.dataset.theme = shown.value;
}

effect(() => {
  apply();
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // then it lasts as long as the page
  }
});
dark.addEventListener("change", apply);

/** The value of a colour, for what is drawn on a canvas. */
export const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const small = matchMedia("(max-width: 760px)");
export const narrow = signal(small.matches);
small.addEventListener("change", () => (narrow.value = small.matches));
