/** An error whose message is written for the user of the page. */
export class ViewerError extends Error {}
