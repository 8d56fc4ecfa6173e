'use strict';
// ISO 8601 durations, as the management API writes them.

const PATTERN = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$/;
/** The service's word for "without end": the longest time span of .NET. */
const FOREVER = 'P10675199DT2H48M5.4775807S';

/** Returns the milliseconds of a duration, `Infinity` for the longest one, `undefined` for what is no duration. */
function parse(text) {
    const found = PATTERN.exec(text);
    if (!found || text === 'P' || text.endsWith('T')) return undefined;
    const [days, hours, minutes, seconds] = found.slice(1).map((part) => Number(part ?? 0));
    if (days >= 10_000_000) return Infinity;
    return Math.round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000);
}

/** Returns the duration of so many milliseconds. */
function format(milliseconds) {
    if (milliseconds === Infinity) return FOREVER;
    const seconds = milliseconds / 1000;
    const days = Math.floor(seconds / 86400);
    const hours = Math.floor((seconds % 86400) / 3600);
    const minutes = Math.floor((seconds % 3600) / 60);
    const rest = Number((seconds % 60).toFixed(3));
    const time = `${hours ? `${hours}H` : ''}${minutes ? `${minutes}M` : ''}${rest ? `${rest}S` : ''}`;
    if (!days && !time) return 'PT0S';
    return `P${days ? `${days}D` : ''}${time ? `T${time}` : ''}`;
}

module.exports = { format, parse };
