"""`python -m tests.wandb_server [PORT]`: a server to try things against by hand; says what it is asked."""

import sys
import time

from .server import WandbServer

with WandbServer(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as server:
    print("\n".join(f"export {name}={value}" for name, value in server.environment.items()), flush=True)
    said = 0
    while True:
        time.sleep(0.1)
        for request in server.recorded.requests[said:]:
            print(request.status, request.method, request.path, request.operation, file=sys.stderr, flush=True)
            said += 1
