"""Pages for browsers, served by the service on its own port: `/ui/…`.

sessions ──► guard ──► pages ──► templates, pictures (SVG)
                         ▲
     row_use (what is believed of rows, sampled), timeline (runs from the journal)

Pages are made here; in the browser, htmx replaces parts of them, `static/dashboard.js` draws charts and the timeline.
"""
