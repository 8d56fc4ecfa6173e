"""Sends the benchmark's jobs from 16 threads, and prints when it began and ended."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from tasks import thumbnail

NAME, URL, NOTE = (os.environ[f"BENCH_{part}"] for part in ("NAME", "URL", "NOTE"))


def send(number):
    thumbnail.delay(number, NAME, URL, NOTE)


if __name__ == "__main__":
    jobs = int(os.environ["BENCH_JOBS"])
    with ThreadPoolExecutor(16) as threads:
        # Each thread has a connection.
        list(threads.map(send, range(64)))
        began = time.time_ns()
        list(threads.map(send, range(jobs)))
        print(began, time.time_ns(), flush=True)
