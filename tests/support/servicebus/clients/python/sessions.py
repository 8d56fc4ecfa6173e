"""Sessions: locks, order, state."""

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from emulator import none, one, raises


def sessions_keep_their_messages_apart(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(f"{s}{i}", session_id=s) for i in range(3) for s in "ab"])
        for session in "ab":
            with client.get_queue_receiver(queue, session_id=session) as receiver:
                for i in range(3):
                    message = one(receiver)
                    assert str(message) == f"{session}{i}" and message.session_id == session
                    receiver.complete_message(message)
                none(receiver)


def the_next_free_session_is_given(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(s, session_id=s) for s in "ab"])
        first = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
        second = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
        with first, second:
            assert {str(one(first)), str(one(second))} == {"a", "b"}
            assert first.session.session_id == "a" and first.session.locked_until_utc
            third = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
            with raises(OperationTimeoutError):
                with third:
                    pass


def a_held_session_is_refused_to_others(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        with client.get_queue_receiver(queue, session_id="s"):
            with raises(SessionCannotBeLockedError):
                with client.get_queue_receiver(queue, session_id="s"):
                    pass
        with client.get_queue_receiver(queue, session_id="s"):
            pass


def closing_a_session_gives_back_uncounted(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s"))
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            assert one(receiver).delivery_count == 0
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            message = one(receiver)
            assert message.delivery_count == 0
            receiver.complete_message(message)


def an_expired_session_is_lost_and_counted(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s"))
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            message = one(receiver)
            until = receiver.session.locked_until_utc
            emulator.advance(30)
            assert receiver.session.renew_lock() > until
            emulator.advance(61)
            # On a busy machine the client settles before it has heard that its link is gone.
            with raises((SessionLockLostError, MessageLockLostError)):
                receiver.complete_message(message)
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            assert one(receiver).delivery_count == 1


def a_session_keeps_its_state(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            assert receiver.session.get_state() is None
            receiver.session.set_state(b"state")
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            assert receiver.session.get_state() == b"state"
            receiver.session.set_state(None)
            assert receiver.session.get_state() is None


def sessions_are_listed(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        assert list(client.list_queue_sessions(queue)) == []
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage("x", session_id=f"s{i}") for i in range(3)])
        assert sorted(client.list_queue_sessions(queue)) == ["s0", "s1", "s2"]


def sessions_are_demanded_where_they_are_required(emulator):
    queue = emulator.queue(RequiresSession=True)
    with emulator.client() as client:
        with raises(ServiceBusError):
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage("x"))
        with raises(ServiceBusError):
            with client.get_queue_receiver(queue) as receiver:
                receiver.receive_messages(1, 1)


CHECKS = [check for name, check in list(globals().items()) if name.startswith(("a_", "an_", "sessions_", "the_", "closing_"))]
