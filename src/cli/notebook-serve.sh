# Runs inside a task: Jupyter on port $1 of this sandbox. The token comes as the first line of standard input, so
# that it is neither among the arguments nor in what the cloud stores of the task.
IFS= read -r JUPYTER_TOKEN || exit 125
export JUPYTER_TOKEN
unset virga_jupyter
for virga_jupyter in jupyter-lab jupyter-notebook jupyter-server ''; do
    [ -z "$virga_jupyter" ] || ! command -v "$virga_jupyter" >/dev/null 2>&1 || break
done
if [ -z "$virga_jupyter" ]; then
    echo "virga notebook: this environment has no Jupyter: 'pip install jupyterlab' in it, and try again" >&2
    exit 127
fi
echo virga-notebook
root=
[ "$(id -u)" != 0 ] || root=--allow-root
exec "$virga_jupyter" --no-browser --ip=127.0.0.1 --port="$1" --port-retries=0 --log-level=30 $root </dev/null
