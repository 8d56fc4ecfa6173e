"""Receives spans and metrics over OTLP/gRPC with OpenTelemetry's own message types, as a collector would.

Prints its port, then one JSON object for each span and for each metric. Ends when its standard input ends.
"""

import json
import sys
from concurrent import futures

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


class Traces(traces_grpc.TraceServiceServicer):
    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    show(
                        span=span.name,
                        kind=Span.SpanKind.Name(span.kind),
                        trace=span.trace_id.hex(),
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        links=[link.span_id.hex() for link in span.links],
                        attributes=attributes(span.attributes),
                        scope=scope.scope.name,
                        schema=scope.schema_url,
                    )
        return traces.ExportTraceServiceResponse()


class Metrics(metrics_grpc.MetricsServiceServicer):
    def Export(self, request, context):
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    show(metric=metric.name, unit=metric.unit, data=metric.WhichOneof("data"))
        return metrics.ExportMetricsServiceResponse()


def show(**found):
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    traces_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    show(port=port)
    sys.stdin.read()
    server.stop(None)


main()
