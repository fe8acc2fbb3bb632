"""Serves the bare repositories below a folder over HTTP with Dulwich, a Git written in Python.

Its argument is the directory. It prints the port on the first line, and stops when its standard input ends.
"""

import sys
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

from dulwich.server import FileSystemBackend
from dulwich.web import make_wsgi_chain


class Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        pass


class Backend(FileSystemBackend):
    def open_repository(self, path):
        return super().open_repository(path.lstrip("/"))


server = make_server("127.0.0.1", 0, make_wsgi_chain(Backend(sys.argv[1])), handler_class=Quiet)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
