// How states of tasks look: a shape, a word and a colour; any one of them suffices.
export type Tone = "run" | "wait" | "good" | "bad" | "block" | "still";

interface Look { tone: Tone; shape: "dot" | "ring" | "pause" | "check" | "cross" | "dash" }

const LOOKS: Record<string, Look> = {
  running: { tone: "run", shape: "dot" },
  starting: { tone: "run", shape: "ring" },
  queued: { tone: "wait", shape: "ring" },
  blocked: { tone: "block", shape: "pause" },
  succeeded: { tone: "good", shape: "check" },
  failed: { tone: "bad", shape: "cross" },
  cancelled: { tone: "still", shape: "dash" },
};

export const look = (state: string): Look => LOOKS[state] ?? { tone: "still", shape: "ring" };
