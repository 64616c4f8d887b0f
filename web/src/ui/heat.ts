/** Six steps of use, "0" (rests) to "5" (full); undefined: nobody tells. */
export function heat(percent: number | null | undefined): string | undefined {
  return percent == null ? undefined : String(percent < 2 ? 0 : Math.min(5, 1 + Math.floor(percent / 20)));
}
