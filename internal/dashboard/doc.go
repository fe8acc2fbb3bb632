// Package dashboard is the service's web interface. It shows throughput and latency, work in progress,
// workers, leases, hosts, dead letters, outboxes, watches and the state and results of each repository, all
// live. Users who are logged in can request syncs, send notifications, release leases, and retry or drop dead
// letters.
//
// # How a page is served
//
// Each page is a [page]: query parameters, a function that loads its data, and a template. The server renders the
// whole page, so it works without JavaScript. With JavaScript the page then follows one stream of server-sent
// events, which carries only the parts that changed.
//
//	GET /, /dashboard/leases …      the page
//	GET /dashboard/events?page=…    its parts, as they change
//	POST /dashboard/…               an action; answered with a redirect
//	GET /dashboard/static/{hash}/…  embedded files, cached by browsers indefinitely
//
// A [hub] loads and renders the live parts. Clients with the same page, query and permissions share one [view], so
// Redis is read once for all of them, and not at all without clients. Pages that are slow to load are loaded less
// often: loading takes at most a twentieth of the time.
//
// Throughput and latency cover the whole deployment, not only this process: while any client is connected, a [tail]
// follows the results stream and counts results in buckets of 5 s over 15 min. The latency of a change is the time
// between its stream entry and that of its result, both by Redis' clock.
//
// What is read comes from the interfaces and functions of [Config], so that a deployment of several parts can
// combine them. Only the tail and the history of a repository read the stream of results themselves.
//
// # Guarantees
//
//   - Visitors who are not logged in see no more than the API shows without a token, and cannot change anything.
//   - A lease is released by its fence, so only the holder shown on the page can lose it.
//   - A form is valid only for its session. Sessions are signed cookies; the dashboard stores nothing.
//   - Only embedded scripts run: all content is escaped, and the content security policy forbids inline scripts.
//   - The number of clients and the bytes read from Redis are limited; clients that fall behind are dropped.
//   - While Redis is unavailable, the page says so, keeps showing the last data, and recovers by itself.
package dashboard
