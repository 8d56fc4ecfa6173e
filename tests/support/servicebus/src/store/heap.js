'use strict';

/** A binary heap: the smallest key first. */
class Heap {
    constructor(key) {
        this.key = key;
        this.items = [];
    }

    peek() {
        return this.items[0];
    }

    push(item) {
        const { items, key } = this;
        let at = items.push(item) - 1;
        while (at > 0) {
            const parent = (at - 1) >> 1;
            if (key(items[parent]) <= key(items[at])) break;
            [items[parent], items[at]] = [items[at], items[parent]];
            at = parent;
        }
    }

    pop() {
        const { items, key } = this;
        const first = items[0];
        const last = items.pop();
        if (items.length === 0 || first === undefined) return first;
        items[0] = last;
        for (let at = 0; ; ) {
            let least = at;
            for (const child of [2 * at + 1, 2 * at + 2]) {
                if (child < items.length && key(items[child]) < key(items[least])) least = child;
            }
            if (least === at) return first;
            [items[least], items[at]] = [items[at], items[least]];
            at = least;
        }
    }
}

module.exports = { Heap };
