"""What is known of a folder's tree, for comparing two of them byte by byte. Standard library only."""
import hashlib
import os
import stat


def tree(root, times=True, skip=()):
    """{path: facts} of everything below `root`: kind, mode, owner, size, time, content, link, xattrs, names."""
    root = str(root)
    found, groups = {}, {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            short = os.path.relpath(path, root)
            if short in skip:
                continue
            st = os.lstat(path)
            facts = {"mode": oct(st.st_mode), "owner": (st.st_uid, st.st_gid)}
            if not stat.S_ISDIR(st.st_mode):
                if st.st_nlink > 1:
                    groups.setdefault(st.st_ino, []).append(short)
                if times:
                    facts["mtime"] = st.st_mtime_ns
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    facts["content"] = (st.st_size, hashlib.sha256(f.read()).hexdigest())
            if stat.S_ISLNK(st.st_mode):
                facts["target"] = os.readlink(path)
            facts["xattrs"] = {n: os.getxattr(path, n, follow_symlinks=False)
                               for n in sorted(os.listxattr(path, follow_symlinks=False))}
            found[short] = facts
        folders[:] = [f for f in folders if os.path.relpath(os.path.join(folder, f), root) not in skip]
    for names in groups.values():
        for name in names:
            found[name]["same"] = sorted(names)
    return found


def differences(a, b, limit=10):
    """Sentences on how two trees differ; none when they do not."""
    said = [f"only in the first: {p}" for p in sorted(a.keys() - b.keys())]
    said += [f"only in the second: {p}" for p in sorted(b.keys() - a.keys())]
    for path in sorted(a.keys() & b.keys()):
        for key in sorted(a[path].keys() | b[path].keys()):
            if a[path].get(key) != b[path].get(key):
                said.append(f"{path}: {key} is {a[path].get(key)} in the first, {b[path].get(key)} in the second")
    return said[:limit] + ([f"... and {len(said) - limit} more"] if len(said) > limit else [])
