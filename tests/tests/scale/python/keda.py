"""Asks an external scaler as KEDA does. The client is made from the description of the interface.

    keda.py PROTO ADDRESS

Reads commands from standard input, one a line in JSON: {"method": …, "metadata": {…}}. Prints an answer for each; the method
`StreamIsActive` prints each answer of the stream, and ends after "count".
"""

import importlib
import json
import os
import sys
import tempfile

import grpc
from grpc_tools import protoc

proto, address = sys.argv[1:]
out = tempfile.mkdtemp()
folder, name = os.path.split(proto)
if protoc.main(["protoc", f"-I{folder}", f"--python_out={out}", f"--grpc_python_out={out}", name]) != 0:
    sys.exit("the interface was not understood")
sys.path.insert(0, out)
messages = importlib.import_module("externalscaler_pb2")
services = importlib.import_module("externalscaler_pb2_grpc")

scaler = services.ExternalScalerStub(grpc.insecure_channel(address))


def say(value):
    print(json.dumps(value), flush=True)


def ask(command):
    reference = messages.ScaledObjectRef(
        name="worker", namespace="default", scalerMetadata=command["metadata"]
    )
    method = command["method"]
    if method == "IsActive":
        say(scaler.IsActive(reference, timeout=60).result)
    elif method == "GetMetricSpec":
        specs = scaler.GetMetricSpec(reference, timeout=60).metricSpecs
        say([[s.metricName, s.targetSize, s.targetSizeFloat] for s in specs])
    elif method == "GetMetrics":
        request = messages.GetMetricsRequest(scaledObjectRef=reference, metricName="any")
        values = scaler.GetMetrics(request, timeout=60).metricValues
        say([[v.metricName, v.metricValue, v.metricValueFloat] for v in values])
    elif method == "StreamIsActive":
        stream = scaler.StreamIsActive(reference, timeout=120)
        for _ in range(command["count"]):
            say(next(stream).result)
        stream.cancel()


for line in sys.stdin:
    try:
        ask(json.loads(line))
    except grpc.RpcError as error:
        say({"error": error.code().name, "details": error.details()})
