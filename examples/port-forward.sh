#!/bin/sh
# A server inside a task, reached through a port of this machine. Nobody else can reach it.
set -eu
port=${1:-18080}
cd "$(mktemp -d)"
echo "served from a task" > index.html

vrun -q -p "$port:8000" python3 -m http.server 8000 >/dev/null 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT

# The server needs a moment to listen: ask until it answers.
python3 - "$port" <<'EOF'
import sys, time, urllib.request
for _ in range(100):
    try:
        print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/").read().decode(), end="")
        break
    except OSError:
        time.sleep(0.1)
else:
    sys.exit("the server did not answer")
EOF
