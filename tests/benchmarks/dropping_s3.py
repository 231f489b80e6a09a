"""
A server of S3's requests that drops all it gets: `python dropping_s3.py` prints its port.

It takes next to no processor time, so a measurement shows an export whose bucket is on another machine.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BEGUN = b"<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"
_COMPLETED = b"<CompleteMultipartUploadResult><ETag>one</ETag></CompleteMultipartUploadResult>"
_NO_OBJECTS = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
_ABSENT = b"<Error><Code>NoSuchKey</Code></Error>"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    _dropped = memoryview(bytearray(1 << 20))

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def do(self) -> None:
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            left -= self.rfile.readinto(self._dropped[: min(left, len(self._dropped))])
        _, _, query = self.path.partition("?")
        status, body = {
            "GET": (200, _NO_OBJECTS) if "list-type" in query else (404, _ABSENT),
            "HEAD": (404, b""),
            "PUT": (200, b""),
            "POST": (200, _BEGUN if query.startswith("uploads") else _COMPLETED),
            "DELETE": (204, b""),
        }[self.command]
        self.send_response_only(status)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do  # noqa: N815 - the names of http.server


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
