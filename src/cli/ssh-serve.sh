# Runs inside a task, one for each connection: one line with the session's host key, then sshd itself on
# standard input and output. $1: the client's public key, $2: who wants in.
fail() { echo "virga ssh: $1" >&2; exit 125; }
me=$(id -un 2>/dev/null) || fail "your number $(id -u) has no name in /etc/passwd of this environment, and sshd lets in nobody without one: add a line for it there"
[ -z "$2" ] || [ "$2" = "$me" ] || fail "in this session you are '$me', not '$2': use 'ssh -l $me', or a line 'User $me' in the configuration"
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin
n=${VIRGA_SSH_NODE:-/run/virga/s/ssh}
if sshd=$(command -v sshd) && keygen=$(command -v ssh-keygen); then
    for sftp in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec /usr/lib/misc; do
        [ -x $sftp/sftp-server ] && break
    done
    sftp=$sftp/sftp-server
elif [ -x $n/sshd ] && [ -x $n/ssh-keygen ]; then
    # The node's, by its own loader: nothing of this root need fit it.
    by="$n/ld.so --library-path $n/lib"
    sshd="$by $n/sshd" keygen="$by $n/ssh-keygen" sftp="$by $n/sftp-server"
else
    fail "neither this environment nor the node has an OpenSSH server: install it in one of them (Debian and Ubuntu: openssh-server)"
fi
d=/dev/shm/.virga-ssh-$(id -u)
umask 077
mkdir -p $d && [ -O $d ] && [ ! -L $d ] || fail "cannot use $d: end the session with 'virga session end' and connect again"
# Two connections may come at once: whoever links first has made the key.
if [ ! -e $d/host ]; then
    $keygen -q -t ed25519 -N '' -C virga -f $d/host.$$ </dev/null >/dev/null || fail "cannot make a host key in $d"
    ln $d/host.$$ $d/host 2>/dev/null
    rm -f $d/host.$$ $d/host.$$.pub
fi
public=$($keygen -y -f $d/host) || fail "cannot read the host key in $d"
export -p >$d/env.$$
printf '%s\n' "$1" >$d/key.$$
# What sshd knows of the connection stays; everything else is as the task has it.
cat >$d/enter.$$ <<END
for v in SSH_AUTH_SOCK SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_ORIGINAL_COMMAND SSH_USER_AUTH TERM; do
    eval "kept_\$v=\\\${\$v-} has_\$v=\\\${\$v+x}"
done
shell=\$SHELL
. $d/env.$$
for v in SSH_AUTH_SOCK SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_ORIGINAL_COMMAND SSH_USER_AUTH; do
    eval "if [ \"\\\$has_\$v\" ]; then \$v=\\\$kept_\$v; export \$v; else unset \$v; fi"
    unset has_\$v kept_\$v
done
[ -z "\$SSH_TTY" ] || TERM=\$kept_TERM
unset has_TERM kept_TERM v OLDPWD
[ -x "\$shell" ] || shell=/bin/sh
SHELL=\$shell
export SHELL
cd
if [ "\${SSH_ORIGINAL_COMMAND+x}" ]; then
    c=\$SSH_ORIGINAL_COMMAND
    unset SSH_ORIGINAL_COMMAND
    exec "\$shell" -c "\$c"
fi
exec "\$shell" -l
END
cat >$d/conf.$$ <<END
HostKey $d/host
AuthorizedKeysFile $d/key.$$
ForceCommand exec /bin/sh $d/enter.$$
Subsystem sftp $sftp
UsePAM no
StrictModes no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PermitUserEnvironment no
PrintMotd no
LogLevel ERROR
END
# Root's sshd wants a user of its own; this root is the session's, and what is written there its own.
if [ "$(id -u)" = 0 ]; then
    mkdir -p -m 755 /run/sshd
    grep -q ^sshd: /etc/passwd || echo 'sshd:x:65534:65534::/run/sshd:/bin/false' >>/etc/passwd
fi
# Where /etc/shadow cannot be read (it stays on its own machine) systemd's module would say that root is locked.
SYSTEMD_NSS_BYPASS_SYNTHETIC=1
export SYSTEMD_NSS_BYPASS_SYNTHETIC
printf 'virga-ssh 1 %s\n' "$public"
# Not exec: what belongs to this connection goes with it.
trap 'rm -f $d/*.$$' EXIT
trap 'exit 129' HUP
trap 'exit 143' TERM
$sshd -i -e -f $d/conf.$$
