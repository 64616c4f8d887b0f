"""Images for tests: made from plain descriptions, and a small registry that is strict about what it is asked.
Standard library only; zstd by its program."""
import base64
import gzip
import hashlib
import http.server
import io
import json
import os
import ssl
import subprocess
import tarfile
import threading
import urllib.parse

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(entries, packing="gzip", form=tarfile.PAX_FORMAT):
    """A layer from {path: bytes (file) | None (folder) | "-> target" | "= other name" | (bytes, mode)}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for path, what in entries.items():
            info = tarfile.TarInfo(path)
            info.mtime, info.mode, data = 1600000000, 0o644, None
            if isinstance(what, tuple):
                what, info.mode = what
            if what is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(what, str) and what.startswith("-> "):
                info.type, info.linkname = tarfile.SYMTYPE, what[3:]
            elif isinstance(what, str) and what.startswith("= "):
                info.type, info.linkname = tarfile.LNKTYPE, what[2:]
            else:
                data = what
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    raw = out.getvalue()
    if packing == "gzip":
        return LAYER + "+gzip", gzip.compress(raw), digest(raw)
    if packing == "zstd":
        return LAYER + "+zstd", subprocess.run(["zstd", "-q", "-c"], input=raw, stdout=subprocess.PIPE, check=True).stdout, digest(raw)
    return LAYER, raw, digest(raw)


class Image:
    """blobs by digest, and the descriptor of the index or manifest that is its top."""

    def __init__(self, layers, config=None, name="test", several=False):
        self.blobs = {}
        parts = [(kind, self.put(data), len(data)) for kind, data, _ in layers]
        conf = {"architecture": "amd64", "os": "linux", "config": config or {},
                "rootfs": {"type": "layers", "diff_ids": [plain for _, _, plain in layers]}}
        conf = json.dumps(conf).encode()
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": self.put(conf), "size": len(conf)},
            "layers": [{"mediaType": k, "digest": d, "size": n} for k, d, n in parts]}).encode()
        self.top = {"mediaType": MANIFEST, "digest": self.put(manifest), "size": len(manifest)}
        if several:
            index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
                {**self.top, "digest": "sha256:" + 64 * "0", "platform": {"os": "linux", "architecture": "s390x"}},
                {**self.top, "platform": {"os": "linux", "architecture": "amd64"}}]}).encode()
            self.top = {"mediaType": INDEX, "digest": self.put(index), "size": len(index)}
        self.top["annotations"] = {"org.opencontainers.image.ref.name": name}

    def put(self, data):
        self.blobs[digest(data)] = data
        return digest(data)

    def write_layout(self, folder):
        os.makedirs(f"{folder}/blobs/sha256")
        for name, data in self.blobs.items():
            with open(f"{folder}/blobs/sha256/{name[7:]}", "wb") as f:
                f.write(data)
        with open(f"{folder}/oci-layout", "w", encoding="utf-8") as f:
            f.write('{"imageLayoutVersion":"1.0.0"}')
        with open(f"{folder}/index.json", "w", encoding="utf-8") as f:
            json.dump({"schemaVersion": 2, "manifests": [self.top]}, f)

    def write_archive(self, path, tmp):
        self.write_layout(tmp)
        with tarfile.open(path, "w") as tar:
            for name in ("oci-layout", "index.json", "blobs"):
                tar.add(f"{tmp}/{name}", name)


class Authority:
    """An authority of its own, and a server's certificate for `host` (a name or an address) made by it."""

    def __init__(self, folder, host="127.0.0.1"):
        os.makedirs(folder, exist_ok=True)
        self.ca, self.cert, self.key = (f"{folder}/{name}.pem" for name in ("ca", "cert", "key"))
        which = "IP" if host.replace(".", "").isdigit() else "DNS"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        for argv in (["req", "-x509", *key, "-keyout", f"{folder}/ca-key.pem", "-out", self.ca, "-subj", "/CN=an authority"],
                     ["req", "-x509", *key, "-keyout", self.key, "-out", self.cert, "-subj", "/CN=a server",
                      "-addext", f"subjectAltName={which}:{host}", "-addext", "basicConstraints=critical,CA:FALSE",
                      "-CA", self.ca, "-CAkey", f"{folder}/ca-key.pem"]):
            subprocess.run(["openssl", *argv], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wrap(self, server):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)


class Registry:
    """Serves images by name on this machine. Strict: a token for each repository, which only who logged in gets
    when `login` is set (or, with `basic`, no token but the login each time); blobs are sent elsewhere (another port,
    which must not see the token); chunks. With an Authority it speaks TLS."""

    def __init__(self, images, login=None, basic=False, authority=None):
        self.images, self.login, self.basic, self.seen, self.faults = images, login, basic, [], []
        self.scheme = "https" if authority else "http"
        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler(kind)) for kind in ("front", "blobs")]
        for s in self.servers:
            if authority:
                authority.wrap(s)
            s.handle_error = lambda *_: None  # who does not trust us hangs up
            threading.Thread(target=s.serve_forever, daemon=True).start()
        self.host = f"127.0.0.1:{self.servers[0].server_port}"
        self.blob_host = f"127.0.0.1:{self.servers[1].server_port}"

    def close(self):
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def handler(self, kind):
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, status, data=b"", chunked=False, **headers):
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key.replace("_", "-"), value)
                if chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for i in range(0, len(data), 1000):
                        part = data[i:i + 1000]
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def do_GET(self):
                registry.seen.append((kind, self.path))
                if kind == "blobs":
                    if self.headers.get("Authorization"):
                        registry.faults.append("the token went to another host")
                    return self.answer(200, registry.blob(self.path.strip("/")), chunked=True)
                return self.front()

            def front(self):
                path = urllib.parse.urlparse(self.path)
                if path.path == "/token":
                    query = urllib.parse.parse_qs(path.query)
                    auth = "Basic " + base64.b64encode(registry.login.encode()).decode() if registry.login else None
                    if registry.login and self.headers.get("Authorization") != auth:
                        return self.answer(401)
                    if query.get("service") != ["test registry"]:
                        registry.faults.append(f"service {query}")
                    return self.answer(200, json.dumps({"token": "for " + query["scope"][0]}).encode())
                parts = path.path.split("/")
                repo, what, ref = "/".join(parts[2:-2]), parts[-2], parts[-1]
                scope = f"repository:{repo}:pull"
                if registry.basic:
                    if self.headers.get("Authorization") != "Basic " + base64.b64encode(registry.login.encode()).decode():
                        return self.answer(401, WWW_Authenticate='Basic realm="test registry"')
                elif self.headers.get("Authorization") != "Bearer for " + scope:
                    return self.answer(401, WWW_Authenticate=f'Bearer realm="{registry.scheme}://{registry.host}/token",service="test registry",scope="{scope}"')
                image = registry.images.get(repo)
                if image and what == "manifests":
                    accept = self.headers.get("Accept") or ""
                    name = image.top["digest"] if ref == "v1" else ref
                    if name in image.blobs:
                        kind_of = json.loads(image.blobs[name]).get("mediaType", "")
                        if kind_of not in accept:
                            registry.faults.append(f"{kind_of} is not accepted by {accept}")
                        return self.answer(200, image.blobs[name], Content_Type=kind_of)
                if image and what == "blobs" and ref in image.blobs and "mediaType" not in str(image.blobs[ref][:60]):
                    return self.answer(307, Location=f"{registry.scheme}://{registry.blob_host}/{ref}")
                return self.answer(404, b'{"errors":[]}')

        return Handler

    def blob(self, name):
        for image in self.images.values():
            if name in image.blobs:
                return image.blobs[name]
        return b""
