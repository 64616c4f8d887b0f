import { call, part, type Query } from "../api";
import { Ask, say } from "./parts";
import type { Task } from "../types";

export function CancelTask({ task, close }: { task: Task; close: () => void }) {
  return (
    <Ask title={`Cancel ${task.name || task.id.slice(0, 8)}?`} yes="Cancel the task" danger close={close}
      act={async () => {
        await call("POST", `/tasks/${part(task.id)}/cancel`, {});
        say("The task is being cancelled.");
      }}>
      <p>{task.members ? `All of its ${task.members} members end. ` : ""}It is asked to end (TERM), and made to when its grace is over. What it printed is kept.</p>
    </Ask>
  );
}

export function CancelMany({ filter, count, close }: { filter: Query; count: string; close: () => void }) {
  return (
    <Ask title="Cancel what is listed?" yes="Cancel them" danger close={close}
      act={async () => {
        const { label, ...rest } = filter;
        const matching: Record<string, unknown> = Object.fromEntries(Object.entries(rest).filter(([, v]) => (Array.isArray(v) ? v.length : v)));
        const labels = (label as string[]).map((l) => l.split(/=(.*)/s).slice(0, 2));
        if (labels.length) matching.label = Object.fromEntries(labels);
        await call("POST", "/tasks/cancel", { matching });
        say("The tasks are being cancelled.");
      }}>
      <p>Of the {count} tasks listed, every one that has not ended is asked to end, and made to when its grace is over.</p>
    </Ask>
  );
}
