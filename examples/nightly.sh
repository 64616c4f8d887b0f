#!/bin/sh
# A schedule makes a task again and again: every night at 3 here, or every few seconds to look at.
set -eu

night=$(vbatch -n nightly --cron '0 3 * * *' --time 2h sh -c 'echo "cleaning up"')
often=$(vbatch -n often --every 1s date)
virga schedule list

# Its tasks are ordinary ones. Wait for the first and look at it.
id=
while [ -z "$id" ]; do
    sleep 0.2
    id=$(virga task list --all --name often -o json | grep -m 1 -o '"id": "[0-9a-f]*"' | cut -d'"' -f4)
done
virga task wait "$id"
virga task logs "$id"

# Removing a schedule leaves what it made alone.
virga schedule remove "$often"
virga schedule remove "$night"
