#!/bin/sh
# A first command: it runs in a sandbox on the cloud, in this directory, with these variables.
set -eu

vrun echo "hello from the cloud"

# Files of the working directory are there, under the same path.
cd "$(mktemp -d)"
echo "written here" > note
vrun cat note

# So are the variables; -e adds one for this command only.
GREETING=hello vrun -e NAME=world sh -c 'echo "$GREETING, $NAME"'

# And the exit status is the command's own.
vrun sh -c 'exit 3' || echo "exit status $?"
