/** Something that the reader is told, in words. */
export class ViewerError extends Error {}
