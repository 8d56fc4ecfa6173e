'use strict';
// The refusals of the service: an AMQP condition, a text and the status that a management answer carries.

class ServiceError extends Error {
    constructor(condition, description, status = 400) {
        super(description);
        this.condition = condition;
        this.description = description;
        this.status = status;
    }
}

const lockLost = () =>
    new ServiceError(
        'com.microsoft:message-lock-lost',
        'The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue.',
        410,
    );

const sessionLockLost = () =>
    new ServiceError('com.microsoft:session-lock-lost', 'The session lock has expired on the session.', 410);

const sessionCannotBeLocked = (id) =>
    new ServiceError(
        'com.microsoft:session-cannot-be-locked',
        `The requested session '${id}' cannot be accepted. It may be locked by another receiver.`,
        410,
    );

const messageNotFound = (sequence) =>
    new ServiceError('com.microsoft:message-not-found', `No message has the sequence number ${sequence}.`, 404);

const entityNotFound = (name) =>
    new ServiceError('amqp:not-found', `The messaging entity '${name}' could not be found.`, 404);

const entityDisabled = (name) =>
    new ServiceError('com.microsoft:entity-disabled', `The messaging entity '${name}' is disabled.`, 400);

const notAllowed = (why) => new ServiceError('amqp:not-allowed', why, 400);

const badRequest = (why) => new ServiceError('com.microsoft:argument-error', why, 400);

const unauthorized = (why) => new ServiceError('amqp:unauthorized-access', why, 401);

const serverBusy = () =>
    new ServiceError(
        'com.microsoft:server-busy',
        'The request was terminated because the namespace is being throttled. Error code : 50009.',
        503,
    );

const resourceLimitExceeded = (why) => new ServiceError('amqp:resource-limit-exceeded', why, 403);

const timedOut = (what) => new ServiceError('com.microsoft:timeout', `${what} did not complete in time.`, 408);

module.exports = {
    ServiceError,
    badRequest,
    entityDisabled,
    entityNotFound,
    lockLost,
    messageNotFound,
    notAllowed,
    resourceLimitExceeded,
    serverBusy,
    sessionCannotBeLocked,
    sessionLockLost,
    timedOut,
    unauthorized,
};
