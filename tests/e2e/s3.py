"""A bucket for tests: as much of S3 as is used, and strict about it. Signatures and the hashes of bodies are
checked, pages are short, and it misbehaves when it is told to. Standard library only.

As a program it prints its port; POST /_/faults sets what goes wrong next, GET /_/state says what it has."""
import hashlib
import hmac
import http.server
import json
import re
import sys
import threading
import time
import urllib.parse
from datetime import datetime, timezone
from xml.sax.saxutils import escape

KEY_ID, SECRET, REGION, BUCKET = "AKIDTEST", "a-secret/of+tests", "eu-test-1", "envs"


def signature(method, path, query, headers, names, payload, when, region=REGION, secret=SECRET):
    """AWS Signature, version 4, as its specification says."""
    canonical = "\n".join([method, path, query, *(f"{n}:{headers[n].strip()}" for n in names), "", ";".join(names), payload])
    scope = f"{when[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", when, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in (when[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return scope, hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Bucket:
    """objects: {key: bytes}. faults: a list of {"method", "match", "kind", "times"}: the first that fits a request
    happens to it. Kinds: a status; "drop" (no answer), "cut" (half of one), "slow", "wrong" (other bytes), "lie" (200
    with an error inside), "late" (done, but the answer is lost)."""

    def __init__(self, page=3, min_part=1, authority=None):
        self.page, self.min_part = page, min_part
        self.objects, self.uploads, self.faults, self.seen, self.refused = {}, {}, [], [], []
        self.lock, self.next_id = threading.Lock(), 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None
        if authority:
            authority.wrap(self.server)
        self.url = f"http{'s' if authority else ''}://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def fault(self, method, path):
        for f in self.faults:
            if f.get("method", method) == method and f.get("match", "") in path and f.get("times", 1) > 0:
                f["times"] = f.get("times", 1) - 1
                return f["kind"]
        return None

    def handler(self):
        bucket = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, status, data=b"", **headers):
                kind = getattr(self, "kind", None)
                if kind == "wrong" and status == 200 and data:
                    data = bytes([data[0] ^ 1]) + data[1:]
                if kind == "lie" and status == 200:
                    data = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>not really</Message></Error>"
                if kind == "late":
                    self.close_connection = True
                    return
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key.replace("_", "-"), value)
                if status != 204 and "Content_Length" not in headers:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data[:len(data) // 2] if kind == "cut" else data)
                if kind == "cut":
                    self.close_connection = True

            def error(self, status, code, message="because"):
                if status == 403 and self.kind != 403:
                    bucket.refused.append((code, self.command, self.path))
                self.answer(status, f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode())

            def good(self, path, query, body):
                h = {k.lower(): v for k, v in self.headers.items()}
                m = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})",
                                 h.get("authorization", ""))
                if not m or m[1] != KEY_ID:
                    return self.error(403, "InvalidAccessKeyId")
                names, when = m[3].split(";"), h.get("x-amz-date", "")
                if names != sorted(names) or not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names):
                    return self.error(403, "SignatureDoesNotMatch", "headers that must be signed are not")
                at = datetime.strptime(when, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
                if abs(at - time.time()) > 900:
                    return self.error(403, "RequestTimeTooSkewed")
                parts = [p.partition("=") for p in query.split("&")] if query else []
                if [p[0] for p in parts] != sorted(p[0] for p in parts) or any(p[1] != "=" for p in parts):
                    return self.error(403, "SignatureDoesNotMatch", "the query is not canonical")
                scope, want = signature(self.command, path, query, h, names, h["x-amz-content-sha256"], when)
                if m[2] != scope:
                    return self.error(400, "AuthorizationHeaderMalformed", f"the region '{m[2]}' is wrong")
                if not hmac.compare_digest(want, m[4]):
                    return self.error(403, "SignatureDoesNotMatch")
                if hashlib.sha256(body).hexdigest() != h["x-amz-content-sha256"]:
                    return self.error(400, "XAmzContentSHA256Mismatch")
                return True

            def handle_any(self):
                path, _, query = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if path.startswith("/_/"):
                    return self.admin(path, body)
                with bucket.lock:
                    bucket.seen.append((self.command, self.path))
                    self.kind = bucket.fault(self.command, self.path)
                if self.kind == "drop":
                    self.close_connection = True
                    return None
                if self.kind == "slow":
                    time.sleep(5)
                if isinstance(self.kind, int):
                    return self.error(self.kind, "InternalError" if self.kind == 500 else "SlowDown", "told to fail")
                if not self.good(path, query, body):
                    return None
                name, _, key = urllib.parse.unquote(path[1:]).partition("/")
                if name != BUCKET:
                    return self.error(404, "NoSuchBucket")
                args = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
                with bucket.lock:
                    return getattr(self, f"on_{self.command.lower()}")(key, args, body)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any

            def admin(self, path, body):
                self.kind = None
                if path == "/_/faults":
                    bucket.faults = json.loads(body)
                elif path == "/_/put":
                    key, _, data = body.partition(b"\n")
                    bucket.objects[key.decode()] = data
                elif path == "/_/drop":
                    bucket.objects.pop(body.decode(), None)
                state = {"objects": {k: len(v) for k, v in bucket.objects.items()}, "uploads": len(bucket.uploads),
                         "refused": bucket.refused, "seen": len(bucket.seen)}
                return self.answer(200, json.dumps(state).encode())

            def on_put(self, key, args, body):
                if "partNumber" in args:
                    upload = bucket.uploads.get(args.get("uploadId"))
                    if not upload or upload["key"] != key:
                        return self.error(404, "NoSuchUpload")
                    upload["parts"][int(args["partNumber"])] = body
                else:
                    bucket.objects[key] = body
                return self.answer(200, ETag='"%s"' % hashlib.md5(body).hexdigest())

            def on_get(self, key, args, body):
                if key == "" and "uploads" in args:
                    return self.list_uploads(args)
                if key == "":
                    return self.list(args)
                if key not in bucket.objects:
                    return self.error(404, "NoSuchKey")
                return self.answer(200, bucket.objects[key])

            def on_head(self, key, args, body):
                if key not in bucket.objects:
                    return self.answer(404)
                return self.answer(200, Content_Length=str(len(bucket.objects[key])))

            def on_delete(self, key, args, body):
                if "uploadId" in args:
                    if not bucket.uploads.pop(args["uploadId"], None):
                        return self.error(404, "NoSuchUpload")
                else:
                    bucket.objects.pop(key, None)
                return self.answer(204)

            def on_post(self, key, args, body):
                if "uploads" in args:
                    bucket.next_id += 1
                    name = f"upload/{bucket.next_id}+"
                    bucket.uploads[name] = {"key": key, "parts": {}}
                    return self.answer(200, f"<?xml version='1.0'?><InitiateMultipartUploadResult xmlns='http://s3'><Bucket>{BUCKET}</Bucket><UploadId>{name}</UploadId></InitiateMultipartUploadResult>".encode())
                upload = bucket.uploads.get(args.get("uploadId"))
                if not upload or upload["key"] != key:
                    return self.error(404, "NoSuchUpload")
                said = re.findall(r"<Part><PartNumber>(\d+)</PartNumber><ETag>([^<]*)</ETag></Part>", body.decode())
                have = [(str(n), '"%s"' % hashlib.md5(p).hexdigest()) for n, p in sorted(upload["parts"].items())]
                if said != have or [n for n, _ in said] != [str(i + 1) for i in range(len(said))]:
                    return self.error(400, "InvalidPart")
                parts = [p for _, p in sorted(upload["parts"].items())]
                if any(len(p) < bucket.min_part for p in parts[:-1]):
                    return self.error(400, "EntityTooSmall")
                if self.kind != "lie":
                    bucket.objects[key] = b"".join(parts)
                    del bucket.uploads[args["uploadId"]]
                return self.answer(200, b"<?xml version='1.0'?><CompleteMultipartUploadResult><Key/></CompleteMultipartUploadResult>")

            def list(self, args):
                if args.get("list-type") != "2":
                    return self.error(400, "InvalidArgument")
                keys = sorted(k for k in bucket.objects if k.startswith(args.get("prefix", "")))
                after = args.get("continuation-token", "")
                keys = [k for k in keys if not after or k > after[4:]]
                page, more = keys[:bucket.page], len(keys) > bucket.page
                items = "".join(f"<Contents><Key>{escape(k)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                                f"<ETag>&quot;x&quot;</ETag><Size>{len(bucket.objects[k])}</Size></Contents>" for k in page)
                token = f"<NextContinuationToken>tok={escape(page[-1])}</NextContinuationToken>" if more else ""
                return self.answer(200, f"<?xml version='1.0' encoding='UTF-8'?>\n<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
                                        f"<Name>{BUCKET}</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>".encode())

            def list_uploads(self, args):
                items = "".join(f"<Upload><Key>{escape(u['key'])}</Key><UploadId>{n}</UploadId></Upload>"
                                for n, u in bucket.uploads.items() if u["key"].startswith(args.get("prefix", "")))
                return self.answer(200, f"<ListMultipartUploadsResult><Bucket>{BUCKET}</Bucket>{items}</ListMultipartUploadsResult>".encode())

        return Handler


if __name__ == "__main__":
    own = Bucket(page=int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    sys.stdout.write(own.url + "\n")
    sys.stdout.flush()
    sys.stdin.read()
