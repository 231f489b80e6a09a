"""
The common parts of the pages that SteadyWorker draws for a browser: the frame, the styles, and the safe output of texts.

A page is complete without JavaScript, and needs nothing from another host.
`page.html` is the frame, `page.css` has the styles, and `page.js` refreshes a page and pauses this.
`parts.html` has the macros that pages share.

| file | subject |
|---|---|
| `environment.py` | the templates' environment, in which every text is escaped |

The rooms that draw pages import this room; it knows neither a ledger nor a broker.
"""
