'use strict';

/** What the namespace answers to a call: a client gets it when it has come and a fault allows it. */
class Answer {
    constructor() {
        this.isAllowed = false;
        this.hasCome = false;
        this.held = [];
        this.watchers = [];
    }

    /** Notes that the namespace has answered; `pass` gives a part of the answer to the client. */
    come(pass) {
        this.hasCome = true;
        if (this.isAllowed) pass();
        else this.held.push(pass);
        for (const watcher of this.watchers.splice(0)) watcher();
    }

    allow() {
        this.isAllowed = true;
        for (const pass of this.held.splice(0)) pass();
    }

    /** Calls `goOn` when the namespace has answered, which means that it has done the work. */
    whenCome(goOn) {
        if (this.hasCome) goOn();
        else this.watchers.push(goOn);
    }
}

module.exports = { Answer };
