"""Programs that wait for requests with memory on a virtual GPU: what they answer comes from there."""

# Each answer is what lies on the GPU, and the request.
_HELD = """
    nbytes = int(os.environ.get("NBYTES", 64 * MIB))
    cuda.start()
    address = cuda.alloc(nbytes)
    cuda.write(address, b"before" * 1000)
    context = cuda.out(ctypes.c_void_p, "cuCtxGetCurrent")
    def held():
        cuda.call("cuCtxSetCurrent", context)
        return cuda.read(address, 6000)[:6]
"""
HTTP = (
    _HELD
    + """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def log_message(self, *about): pass
        def do_GET(self):
            body = held() + b" " + self.path.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cuda.tell("ready")
    cuda.tell(server.server_port)
    server.serve_forever()
"""
)
# One connection after the other, each with many requests of one line.
UNIX = (
    _HELD
    + """
    import socket
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.environ["SOCKET"])
    server.listen()
    cuda.tell("ready")
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                connection.sendall(held() + b" " + line)
"""
)
PIPE = (
    _HELD
    + """
    cuda.tell("ready")
    for line in sys.stdin:
        cuda.tell(held().decode() + " " + line.strip())
"""
)
DATAGRAMS = (
    _HELD
    + """
    import socket
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    cuda.tell("ready")
    cuda.tell(server.getsockname()[1])
    while True:
        data, sender = server.recvfrom(100)
        server.sendto(held() + b" " + data, sender)
"""
)
# Takes a signal, and says so; the driver's threads, which start later, leave it alone.
SIGNALLED = (
    """
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
"""
    + _HELD
    + """
    cuda.tell("ready")
    while signal.sigwait([signal.SIGUSR1]):
        cuda.tell(held().decode())
"""
)
# Works with a processor all the time.
WORKS = (
    _HELD
    + """
    cuda.tell("ready")
    while True:
        sum(range(10000))
"""
)
