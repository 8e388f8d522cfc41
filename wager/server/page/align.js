// Finds the tokens that shown text came from. The shown text is the text of the tokens without marks such as </think>.
// It can be trimmed, and it can arrive later than its tokens, but never earlier. It uses no elements and no network.

const MAX_RESYNC = 24;

export class Aligner {
  constructor() {
    this.queue = [];
    // The last token without text: the first bytes of a character have none.
    this.textless = null;
  }

  add(tokens) {
    for (const token of tokens) this.queue.push({ token, rest: token.text ?? "" });
  }

  // Pieces {token, text, hidden} for new text. A hidden piece is a token whose text is not shown.
  take(text) {
    const pieces = [];
    while (text) text = this.#next(text, pieces);
    return pieces;
  }

  // The tokens that were never shown: marks at the end.
  flush() {
    const pieces = this.queue.map(({ token }) => ({ token, text: token.text ?? "", hidden: true }));
    this.queue = [];
    return pieces;
  }

  #next(text, pieces) {
    const head = this.queue[0];
    if (!head) return this.#gap(text, text.length, pieces);
    const { token, rest } = head;
    if (rest === "" || rest.includes("\ufffd")) {
      this.textless = token;
      return this.#pass(pieces, rest, text);
    }
    if (text.startsWith(rest)) return this.#show(rest.length, true, text, pieces);
    if (rest.startsWith(text)) return this.#show(text.length, false, text, pieces);
    if (rest !== token.text) return this.#drop(text);
    const bare = rest.trimStart();
    if (bare && bare !== rest && (text.startsWith(bare) || bare.startsWith(text))) {
      head.rest = bare;
      return text;
    }
    const at = rest.trim().length > 1 ? text.indexOf(rest) : -1;
    if (at > 0 && at <= MAX_RESYNC) return this.#gap(text, at, pieces);
    return this.#pass(pieces, rest, text);
  }

  #show(length, whole, text, pieces) {
    const head = this.queue[0];
    pieces.push({ token: head.token, text: text.slice(0, length), hidden: false });
    if (whole) this.queue.shift();
    else head.rest = head.rest.slice(length);
    this.textless = null;
    return text.slice(length);
  }

  #gap(text, length, pieces) {
    pieces.push({ token: this.textless, text: text.slice(0, length), hidden: false });
    this.textless = null;
    return text.slice(length);
  }

  #pass(pieces, rest, text) {
    const { token } = this.queue.shift();
    pieces.push({ token, text: rest, hidden: true });
    return text;
  }

  #drop(text) {
    this.queue.shift();
    return text;
  }
}
