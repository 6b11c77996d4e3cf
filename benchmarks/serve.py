"""`saywhy serve` under load, and how long a visitor waits.

    python benchmarks/serve.py --images DIR [--seconds 60] [--json FILE]

DIR has a few hundred photographs, more than the server keeps features of. Three parts, with the shipped model:

- 16 clients send photographs for a minute, each the next one as soon as it has its caption: errors, latency, memory.
- The same clients and the batch command take turns on the same photographs, so that both see the same machine: captions
  per second of each, and their ratio. The batch command is `saywhy caption` without its start: the model is loaded.
- One visitor, no other client: time from an upload to the caption; from a tap on a word to its map, while the maps of
  all words are being computed; and to the maps of all words. Beside each, the processor time of the server, which is
  the time on an idle core: the machine may be busy with other programs.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

CLIENTS, ROUNDS, ROUND_SECONDS, VISITS = 16, 4, 15, 8
BATCH = """
import sys, time
import saywhy
model = saywhy.load(device="cpu")
paths = sys.argv[1:]
list(model.captions(paths[:32]))
start = 0
for line in sys.stdin:
    count = int(line)
    chosen = [paths[(start + i) % len(paths)] for i in range(count)]
    start += count
    began = time.perf_counter()
    for caption in model.captions(chosen, batch_size=16):
        caption.as_dict()
    print(time.perf_counter() - began, flush=True)
"""


@dataclass
class Load:
    """What clients measured."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0

    @property
    def answered(self) -> int:
        """The number of answers."""
        return len(self.seconds)


class Server:
    """A server process with the shipped model."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "saywhy", "serve", "--port", "0", "--device", "cpu"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    @property
    def megabytes(self) -> float:
        """In memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def cpu_seconds(self) -> float:
        """Processor time since its start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def connect(self) -> http.client.HTTPConnection:
        """A connection that is kept open."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)


def form(image: bytes, **fields: object) -> tuple[bytes, dict[str, str]]:
    """A multipart body and its headers."""
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    parts += [b'--x\r\nContent-Disposition: form-data; name="image"; filename="photo.jpg"\r\n\r\n', image]
    return b"".join([*parts, b"\r\n--x--\r\n"]), {"Content-Type": "multipart/form-data; boundary=x"}


def load(server: Server, images: list[bytes], numbers: itertools.count[int], seconds: float) -> Load:
    """16 clients for this long."""
    result, lock, until = Load(), threading.Lock(), time.perf_counter() + seconds

    def client() -> None:
        connection = server.connect()
        while time.perf_counter() < until:
            body, headers = form(images[next(numbers) % len(images)])
            began = time.perf_counter()
            connection.request("POST", "/api/caption", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            with lock:
                result.seconds.append(time.perf_counter() - began)
                result.errors += response.status != 200 or not answer.get("caption")

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result


def under_load(server: Server, images: list[bytes], numbers: itertools.count[int], seconds: float) -> dict[str, object]:
    """Errors, latency and memory."""
    load(server, images, numbers, 15)  # the warm-up
    before = server.megabytes
    result = load(server, images, numbers, seconds)
    centiles = statistics.quantiles(result.seconds, n=100)
    return {
        "clients": CLIENTS,
        "seconds": seconds,
        "answers": result.answered,
        "errors": result.errors,
        "p50_s": centiles[49],
        "p95_s": centiles[94],
        "memory_after_warm_up_mb": before,
        "memory_at_the_end_mb": server.megabytes,
    }


def beside_batch(
    server: Server, paths: list[Path], images: list[bytes], numbers: itertools.count[int]
) -> dict[str, object]:
    """Captions per second of the server and of the batch command, in turns."""
    command = [sys.executable, "-c", BATCH, *map(str, paths)]
    batch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert batch.stdin is not None
    assert batch.stdout is not None
    rates: dict[str, list[float]] = {"server": [], "batch": []}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answered = load(server, images, numbers, ROUND_SECONDS).answered
        rates["server"].append(answered / (time.perf_counter() - began))
        batch.stdin.write(f"{answered}\n")
        batch.stdin.flush()
        rates["batch"].append(answered / float(batch.stdout.readline()))
    batch.stdin.close()
    batch.wait()
    pairs = zip(rates["server"], rates["batch"], strict=True)
    return {
        "server_captions_per_s": statistics.mean(rates["server"]),
        "batch_captions_per_s": statistics.mean(rates["batch"]),
        "ratio": statistics.median(server / batch for server, batch in pairs),
        "rounds": rates,
    }


def visit(server: Server, image: bytes) -> dict[str, float]:
    """How long one visitor waits."""
    connection, accept = server.connect(), {"Accept": "application/x-ndjson"}
    began, cpu = time.perf_counter(), [server.cpu_seconds]
    body, headers = form(image)
    connection.request("POST", "/api/caption", body, headers | accept)
    events = [json.loads(line) for line in connection.getresponse()]
    caption = next(event for event in events if event["event"] == "caption")
    captioned = time.perf_counter()
    cpu.append(server.cpu_seconds)
    words = " ".join(word["word"] for word in caption["words"])
    ended: dict[str, float] = {}

    def explain_all() -> None:
        every = server.connect()
        body, headers = form(image, caption=words, risk="true")
        every.request("POST", "/api/explain", body, headers | accept)
        assert [json.loads(line) for line in every.getresponse()][-1] == {"event": "end"}
        ended["all"] = time.perf_counter()

    everything = threading.Thread(target=explain_all)
    everything.start()
    time.sleep(0.3)  # as fast as a visitor taps
    tapped = time.perf_counter()
    body, headers = form(image, caption=words, position=3, urgent="true")
    connection.request("POST", "/api/explain", body, headers | accept)
    assert any(json.loads(line)["event"] == "word" for line in connection.getresponse())
    shown = time.perf_counter()
    cpu.append(server.cpu_seconds)
    everything.join()
    cpu.append(server.cpu_seconds)
    return {
        "caption_s": captioned - began,
        "tapped_word_s": shown - tapped,
        "all_maps_s": ended["all"] - captioned,
        "caption_cpu_s": cpu[1] - cpu[0],
        "until_tapped_word_cpu_s": cpu[2] - cpu[1],
        "all_maps_cpu_s": cpu[3] - cpu[1],
    }


def summary(visits: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median and maximum of each wait."""
    return {
        name: {"median": statistics.median(values), "max": max(values)}
        for name in visits[0]
        if (values := [one[name] for one in visits])
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    paths = sorted(options.images.glob("*.jpg"))[: options.count]
    images, numbers, server = [path.read_bytes() for path in paths], itertools.count(), Server()
    machine = {"cores": len(os.sched_getaffinity(0)), "torch": torch.__version__, "threads": torch.get_num_threads()}
    loads = [os.getloadavg()[0]]
    visits = [visit(server, image) for image in images[-VISITS:]]
    loads.append(os.getloadavg()[0])
    table = {
        "machine": machine,
        "images": len(images),
        "one visitor": summary(visits[1:]),
        "under load": under_load(server, images, numbers, options.seconds),
        "beside the batch command": beside_batch(server, paths, images, numbers),
        "first visit after the start": visits[0],
        "load average of the machine before and after the visits": loads,
    }
    server.process.terminate()
    print(json.dumps(table, indent=2))
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
