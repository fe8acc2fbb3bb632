package backup

import "strings"

// Key is a kind of key in Redis.
type Key struct {
	Pattern  string // of the key without the prefix; a * at its end matches any rest
	Exported string // the part of a document that has it; "" if it is left out
	Reason   string // why it is left out, wholly or in part
}

// Keys has all kinds of keys. A key belongs to the first kind that matches.
var Keys = []Key{
	{Pattern: "watch:of:*", Exported: "watches", Reason: "poll times restart"},
	{Pattern: "watch:at:*", Reason: "index of watches"},
	{Pattern: "watch:index", Reason: "index of watches"},
	{Pattern: "poll", Reason: "an import polls each repository"},
	{Pattern: "repo:*", Exported: "state", Reason: "entries of streams, fences and failures are left out"},
	{Pattern: "views:*", Exported: "views"},
	{Pattern: "tokens", Exported: "tokens"}, // its field "required" is in the header
	{Pattern: "tokens:used", Exported: "tokens"},
	{Pattern: "volume", Exported: "header"},

	{Pattern: "changes", Reason: "polls find what is missing"},
	{Pattern: "results", Reason: "repeated for apps that have not acknowledged them"},
	{Pattern: "results:epoch", Reason: "cursors of lost results must not be valid"},
	{Pattern: "dead", Reason: "polls request again what failed; publish other changes again"},
	{Pattern: "due:*", Reason: "entries of a lost stream"},
	{Pattern: "tries:*", Reason: "entries of a lost stream"},
	{Pattern: "shelf:*", Reason: "entries of a lost stream"},
	{Pattern: "labels:*", Reason: "entries of a lost stream"},
	{Pattern: "lock:*", Reason: "leases end with Redis; fences continue from the volume"},
	{Pattern: "host:*", Reason: "found again by the next requests"},
	{Pattern: "hosts:*", Reason: "found again by the next requests"},
	{Pattern: "forwarded:*", Reason: "entries of a lost stream"},
	{Pattern: "working", Reason: "reported by running processes"},
	{Pattern: "patrol", Reason: "reported by running processes"},
	{Pattern: "compare", Reason: "reported by running processes"},
	{Pattern: "reconcile", Reason: "reported by running processes"},
	{Pattern: "followers", Reason: "reported by followers within a minute"},
	{Pattern: "followers:*", Reason: "reported by followers within a minute"},
	{Pattern: "dashboard:ended:*", Reason: "such a session is valid again until it expires"},
	{Pattern: "failing", Reason: "found again by the next attempts"},
	{Pattern: "departed", Reason: "files of repositories that are in another cell; remove them by hand"},
	{Pattern: "rebalance", Reason: "reported by running processes"},
	{Pattern: "rebalance:left", Reason: "counted again by the next plan"},
	{Pattern: "arrivals", Reason: "request the moves again"},
	{Pattern: "arrivals:due", Reason: "request the moves again"},
	{Pattern: "hooks:*", Reason: "a record of webhooks that were received"},
	{Pattern: "deliveries:*", Reason: "a repeated webhook costs one sync that finds nothing new"},
	{Pattern: "notify", Reason: "repeated from what the app last received"},
	{Pattern: "notify:*", Reason: "repeated from what the app last received"},

	// Below the prefix of the directory of cells.
	{Pattern: "cells", Exported: "header"},
	{Pattern: "cells:placed", Exported: "cell", Reason: "of repositories with watches or state"},
	{Pattern: "cells:*", Reason: "log of changes"},
}

// KeyOf returns the kind of a key without the prefix. It returns false if it belongs to none.
func KeyOf(key string) (Key, bool) {
	for _, kind := range Keys {
		start, some := strings.CutSuffix(kind.Pattern, "*")
		if key == kind.Pattern || some && strings.HasPrefix(key, start) {
			return kind, true
		}
	}
	return Key{}, false
}
