"""A command on the cloud, as subprocess.run has it here."""
import virga

done = virga.run(["uname", "-s"], capture=True)
print(f"task {done.task_id} says {done.stdout.strip()}")

# A text is for the shell; lines can be had as they come.
virga.run("for i in 1 2 3; do echo step $i; done", stream=lambda name, line: print(f"{name}: {line}"))

try:
    virga.run(["sh", "-c", "echo not today >&2; exit 3"], capture=True, check=True)
except virga.TaskFailed as e:
    print(f"status {e.status}: {e.stderr.strip()}")
