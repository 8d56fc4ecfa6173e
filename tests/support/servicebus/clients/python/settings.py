"""Queues and their settings over HTTP."""

import datetime

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError

from emulator import one, raises


def settings_are_written_and_read(emulator):
    with emulator.admin() as admin:
        made = admin.create_queue(
            "settings/python",
            lock_duration=datetime.timedelta(seconds=45),
            max_delivery_count=7,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window="PT2M",
            requires_session=True,
            default_message_time_to_live="P1DT2H",
            dead_lettering_on_message_expiration=True,
            user_metadata="<&>",
        )
        for queue in (made, admin.get_queue("settings/python")):
            assert queue.lock_duration == datetime.timedelta(seconds=45), queue.lock_duration
            assert queue.max_delivery_count == 7 and queue.requires_session and queue.requires_duplicate_detection
            assert queue.duplicate_detection_history_time_window == datetime.timedelta(minutes=2)
            assert queue.default_message_time_to_live == datetime.timedelta(days=1, hours=2)
            assert queue.dead_lettering_on_message_expiration and queue.user_metadata == "<&>"
        made.max_delivery_count = 9
        admin.update_queue(made)
        assert admin.get_queue("settings/python").max_delivery_count == 9
        assert "settings/python" in [queue.name for queue in admin.list_queues()]
        with raises(ResourceExistsError):
            admin.create_queue("settings/python")
        admin.delete_queue("settings/python")
        with raises(ResourceNotFoundError):
            admin.get_queue("settings/python")
        with raises(ResourceNotFoundError):
            admin.delete_queue("settings/python")


def the_limits_of_the_service_hold(emulator):
    with emulator.admin() as admin:
        for wrong in ({"lock_duration": "PT10M"}, {"lock_duration": "PT1S"}, {"max_delivery_count": 0}):
            with raises(HttpResponseError):
                admin.create_queue("limits", **wrong)
        made = admin.create_queue("limits")
        assert made.lock_duration == datetime.timedelta(minutes=1) and made.max_delivery_count == 10
        made.requires_session = True
        with raises(HttpResponseError):
            admin.update_queue(made)
        admin.delete_queue("limits")


def counts_are_told(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
        sender.schedule_messages(ServiceBusMessage("y"), datetime.datetime.now() + datetime.timedelta(days=9))
        receiver.dead_letter_message(one(receiver))
        one(receiver)
        with emulator.admin() as admin:
            told = admin.get_queue_runtime_properties(queue)
    assert (told.active_message_count, told.dead_letter_message_count, told.scheduled_message_count) == (2, 1, 1), told
    assert told.total_message_count == 4 and told.size_in_bytes > 0


def the_tier_is_told(emulator):
    with emulator.admin() as admin:
        assert admin.get_namespace_properties().messaging_sku == "Standard"


def an_unknown_queue_has_no_token(emulator):
    # `$cbs` refuses the token, and the client calls each refusal of a token that.
    with emulator.client() as client:
        with raises(ServiceBusAuthenticationError):
            with client.get_queue_receiver("no-such-queue"):
                pass


def deleting_a_queue_detaches_its_links(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (_, sender, _receiver):
        with emulator.admin() as admin:
            admin.delete_queue(queue)
        # The client loses the reason when it waits for an answer; the next attach needs a token.
        with raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("x"))
        with raises(ServiceBusAuthenticationError):
            sender.send_messages(ServiceBusMessage("x"))


CHECKS = [check for name, check in list(globals().items()) if name.startswith(("settings_", "the_", "counts_", "an_", "deleting_"))]
