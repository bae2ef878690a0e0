// Asks the service: again and again while the page is looked at, less and less often while it does not answer.

const ANSWER_MS = 15_000;
const FIRST_RETRY_S = 1, MAX_RETRY_S = 30;

export class ServiceError extends Error {
  constructor(message, hint, status) {
    super(message);
    this.hint = hint;
    this.status = status; // 0: no answer at all
  }
}

let clockAhead_s = 0; // of the service's clock, beside this machine's
export const serviceNow = () => Date.now() / 1000 + clockAhead_s;

// Small differences mean nothing: answers take a while.
export function setClock(now) {
  clockAhead_s = Math.abs(now - Date.now() / 1000) < 2 ? 0 : now - Date.now() / 1000;
}

// One question, and its answer as {body, headers}.
export async function ask(path, { signal = null } = {}) {
  let answer, body;
  const deadline = AbortSignal.timeout(ANSWER_MS);
  try {
    answer = await fetch(path, {
      signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
      redirect: "error",
      credentials: "omit",
    });
    body = await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    if (answer) throw new ServiceError("The service sent an answer that is not JSON.", "", answer.status);
    throw new ServiceError("The service does not answer.", "", 0);
  }
  if (!answer.ok) {
    const hint = typeof body?.hint === "string" ? body.hint : "";
    throw new ServiceError(typeof body?.error === "string" ? body.error : `The service answers with error ${answer.status}.`, hint, answer.status);
  }
  return { body, headers: answer.headers };
}

// Ask *question()* every *every()* seconds while the page is visible. *onAnswer(answer)* gets each answer,
// *onFailure(error, retryAt)* each failure, with the time of performance.now() of the next try.
export class Poll {
  constructor(question, { every, onAnswer, onFailure }) {
    Object.assign(this, { question, every, onAnswer, onFailure });
    this.failures = 0;
    this.timer = null;
    this.isAsking = false;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.now()));
    this.now();
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
      const answer = await this.question();
      this.failures = 0;
      this.onAnswer(answer);
      wait_s = this.every();
    } catch (error) {
      if (!(error instanceof ServiceError)) console.error(error);
      wait_s = Math.min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** this.failures++);
      this.onFailure(error, performance.now() + 1000 * wait_s);
    } finally {
      this.isAsking = false;
    }
    if (!document.hidden) this.timer = setTimeout(() => this.now(), 1000 * wait_s);
  }
}
