"""What the checks share: the emulator under test, its control endpoint and clients for it."""

import json
import urllib.parse
import urllib.request
from contextlib import contextmanager

from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

WAIT = 5


class Emulator:
    """A running emulator, as its line of JSON tells it."""

    def __init__(self, ports, certificate=None):
        self.connection_string = ports["connectionString"]
        self.control_port = ports["controlPort"]
        self.tls_port = ports.get("tlsPort")
        self.certificate = certificate
        self.queues = 0

    def control(self, method, path, body=None, **query):
        """Calls the control endpoint and returns its answer."""
        url = f"http://127.0.0.1:{self.control_port}/{path}?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as answer:
            return json.load(answer)

    def queue(self, **settings):
        """Makes a queue for one check and returns its name."""
        self.queues += 1
        name = f"python-{self.queues}"
        self.control("PUT", f"queues/{name}", settings)
        return name

    def shown(self, queue):
        """Returns the state of a queue."""
        return self.control("GET", "queues/" + urllib.parse.quote(queue, safe=""))

    def plant(self, operation, action, **fields):
        """Plants a fault and returns its number."""
        return self.control("POST", "faults", {"operation": operation, "action": action, **fields})["id"]

    def hits(self, fault, at_least=0):
        """Returns how often a fault has struck; waits until it has so often."""
        return self.control("GET", f"faults/{fault}", hits=at_least, wait=10000)["hits"]

    def advance(self, seconds):
        """Moves the emulator's clock forward."""
        self.control("POST", "clock", {"advance": seconds * 1000})

    def client(self, **options):
        """Returns a stock client, without retries unless told otherwise."""
        return ServiceBusClient.from_connection_string(self.connection_string, **{"retry_total": 0, **options})

    def admin(self):
        """Returns a stock client of the management API, which speaks https always."""
        return ServiceBusAdministrationClient.from_connection_string(
            self.over_tls(), retry_total=0, connection_verify=self.certificate
        )

    def over_tls(self):
        """Returns the connection string for the port with TLS, which is not said to be a development emulator."""
        _, keys = self.connection_string.split(";", 1)
        return f"Endpoint=sb://localhost:{self.tls_port};{keys}".replace("UseDevelopmentEmulator=true", "")

    @contextmanager
    def opened(self, queue, **options):
        """Opens a sender and a receiver of a queue."""
        client_options = options.pop("client", {})
        with self.client(**client_options) as client:
            with client.get_queue_sender(queue) as sender:
                with client.get_queue_receiver(queue, max_wait_time=WAIT, **options) as receiver:
                    yield client, sender, receiver


def one(receiver, wait=WAIT):
    """Receives one message, which must come."""
    found = receiver.receive_messages(1, wait)
    assert len(found) == 1, f"{len(found)} messages instead of one"
    return found[0]


def none(receiver, wait=0.5):
    """Receives nothing."""
    found = receiver.receive_messages(1, wait)
    assert found == [], [str(message) for message in found]


@contextmanager
def raises(kinds):
    """Expects an error of that kind, or of one of these."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"{kinds} was expected")
