"""A wire: joins network interfaces as a switch does, and each frame is under way for a while.

    python wire.py SECONDS LOST INTERFACE...

LOST is the share of the frames that arrive nowhere. It is a process, since few systems have a delay
of their own in the kernel (netem): that takes its share of a processor, so compare with a wire of 0
seconds. It ends when its input is closed.
"""

import collections
import contextlib
import random
import select
import signal
import socket
import sys
import time

_ALL_PROTOCOLS = 3
_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
_HEADER = 10  # bytes before a frame: what of checksums and segments is left to do for the receiver
_LONGEST = 2**17  # more than a frame and its header; TCP's are up to 64 KB, as nobody cuts them


def open_interface(name):
    """Returns a socket with all frames that come and go at an interface."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
    port.bind((name, _ALL_PROTOCOLS))
    return port


def carry(ports, seconds, lost, until):
    """Carries frames.

    Args:
      ports: list of sockets.
      seconds: float, how long each frame is under way.
      lost: float, what share of them is lost.
      until: file; it ends when there is something to read in it, or the end.
    """
    draw = random.Random(1)
    under_way = collections.deque()  # (when it arrives, where, frame): in this order
    behind = {}  # at which port an address is
    while True:
        wait = max(0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([until, *ports], [], [], wait)
        if until in readable:
            return
        now = time.monotonic()
        for port in readable:
            with contextlib.suppress(OSError):  # the interface is down
                frame, (_, _, kind, *_) = port.recvfrom(_LONGEST)
                if kind == socket.PACKET_OUTGOING:
                    continue  # this system's own
                to, sender = frame[_HEADER:_HEADER + 6], frame[_HEADER + 6:_HEADER + 12]
                behind[sender] = port
                if draw.random() < lost:
                    continue
                others = [other for other in ports if other is not port]
                under_way.extend((now + seconds, other, frame)
                                 for other in ([behind[to]] if to in behind else others))
        while under_way and under_way[0][0] <= now:
            _, port, frame = under_way.popleft()
            with contextlib.suppress(OSError):  # lost, as on any wire
                port.send(frame)


def main():
    """Carries frames until its input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever made the network
    ports = [open_interface(name) for name in sys.argv[3:]]
    print('ready', flush=True)
    carry(ports, float(sys.argv[1]), float(sys.argv[2]), sys.stdin)


if __name__ == '__main__':
    main()
