// Asks the service: again and again while somebody looks, less and less often while it does not answer.

const ANSWER_MS = 15_000;
const FIRST_RETRY_S = 1, LONGEST_RETRY_S = 30;

export class ServiceError extends Error {
  constructor(message, hint, status) {
    super(message);
    this.hint = hint;
    this.status = status; // 0: no answer at all
  }
}

let clockAhead_s = 0; // of the service's clock, beside this machine's
export const serviceNow = () => Date.now() / 1000 + clockAhead_s;

function compareClocks(answer) {
  const ahead_s = (Date.parse(answer.headers.get("Date")) - Date.now()) / 1000;
  // The header has whole seconds, and answers take a while: small differences mean nothing.
  if (Number.isFinite(ahead_s)) clockAhead_s = Math.abs(ahead_s) < 5 ? 0 : ahead_s;
}

// One question. {status, body, headers}; with *etag*, status 304 and no body where nothing has changed.
export async function ask(path, { etag = null, signal = null } = {}) {
  let answer, body;
  const deadline = AbortSignal.timeout(ANSWER_MS);
  try {
    answer = await fetch(path, {
      headers: etag ? { "If-None-Match": etag } : {},
      signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
      cache: "no-store",
      redirect: "error",
      credentials: "omit",
    });
    compareClocks(answer);
    body = answer.status === 304 ? null : await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    if (answer) throw new ServiceError("The service sent an answer that is not JSON.", "", answer.status);
    throw new ServiceError("The service does not answer.", "", 0);
  }
  if (answer.status !== 304 && !answer.ok) {
    const hint = typeof body?.hint === "string" ? body.hint : "";
    throw new ServiceError(typeof body?.error === "string" ? body.error : `The service answers with error ${answer.status}.`, hint, answer.status);
  }
  return { status: answer.status, body, headers: answer.headers };
}

// Ask *path* every *every()* seconds while the page is visible. *onAnswer(answer)* gets each answer, also 304;
// *onFailure(error, retryAt)* each failure, with the time of performance.now() of the next try.
export class Poll {
  constructor(path, { every, onAnswer, onFailure }) {
    Object.assign(this, { path, every, onAnswer, onFailure });
    this.etag = null;
    this.failures = 0;
    this.timer = null;
    this.isAsking = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.now()));
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  async now() {
    if (this.isAsking) return;
    this.stop();
    this.isAsking = true;
    let wait_s;
    try {
      const answer = await ask(this.path, { etag: this.etag });
      this.failures = 0;
      if (answer.status !== 304) this.etag = answer.headers.get("ETag");
      wait_s = this.every();
      this.onAnswer(answer);
    } catch (error) {
      if (!(error instanceof ServiceError)) console.error(error);
      wait_s = Math.min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** this.failures++);
      this.onFailure(error, performance.now() + 1000 * wait_s);
    } finally {
      this.isAsking = false;
    }
    if (!document.hidden) this.timer = setTimeout(() => this.now(), 1000 * wait_s);
  }
}
