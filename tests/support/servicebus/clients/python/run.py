"""Checks the emulator with the stock client for Python: run.py JSON CERTIFICATE [MODULE [PART OF A NAME]]."""

import json
import sys
import time
import traceback

import deliveries
import faults
import sessions
import settings
import times
import tls
from emulator import Emulator

MODULES = [deliveries, times, sessions, settings, tls, faults]


def main():
    emulator = Emulator(json.loads(sys.argv[1]), *sys.argv[2:3])
    module, only = (sys.argv[3:5] + ["", ""])[:2]
    modules = [found for found in MODULES if module in found.__name__]
    failed = 0
    for check in [check for found in modules for check in found.CHECKS if only in check.__name__]:
        begun = time.monotonic()
        try:
            check(emulator)
            print(f"ok {check.__name__} {time.monotonic() - begun:.1f} s", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {check.__name__}\n{traceback.format_exc()}", flush=True)
        emulator.control("DELETE", "faults")
    sys.exit(1 if failed else 0)


main()
