"""The same over TLS: this client reaches a port of choice by WebSocket only."""

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from emulator import one


def messages_go_over_tls(emulator):
    queue = emulator.queue()
    address = f"sb://localhost:{emulator.tls_port}"
    options = {"custom_endpoint_address": address, "connection_verify": emulator.certificate, "retry_total": 0}
    with ServiceBusClient.from_connection_string(emulator.over_tls(), **options) as client:
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            sender.send_messages(ServiceBusMessage("x"))
            message = one(receiver)
            receiver.renew_message_lock(message)
            receiver.complete_message(message)


CHECKS = [messages_go_over_tls]
