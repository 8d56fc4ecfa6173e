"""The task that the benchmark's Celery handles: it does nothing but count itself."""

import itertools
import os
import time

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.task_default_queue = os.environ["BENCH_QUEUE"]
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True

# `next` of a counter is one step, whichever thread takes it.
_numbers = itertools.count(1)
_jobs = int(os.environ["BENCH_JOBS"])


@app.task
def thumbnail(number, name, url, note):
    handled = next(_numbers)
    if handled in (1, _jobs):
        with open(os.environ["BENCH_TOLD"], "a") as told:
            told.write(f"{time.time_ns()}\n")
