package notify

import (
	"encoding/json"
	"sort"
	"strings"

	"lockstep/events"
)

// maxBody is the maximum size of a document, in bytes. Standard Webhooks recommends at most 20 kB.
const maxBody = 20_000

// Document returns the CloudEvents document of a result as apps get it, on one line and shorter than 20,000 bytes. To
// fit, it drops files; if that is not enough, first missing submodules, then deliveries and most of the error.
func Document(r events.Result) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil || len(body) < maxBody {
		return body, err
	}
	r.Truncated = true
	if body, err = withFiles(r); err != nil || len(body) < maxBody {
		return body, err
	}
	r.Missing = nil
	if body, err = withFiles(r); err != nil || len(body) < maxBody {
		return body, err
	}
	r.Deliveries, r.Error = nil, strings.ToValidUTF8(r.Error[:min(len(r.Error), 1000)], "")
	return withFiles(r)
}

// withFiles returns the document with as many of the result's files as fit, or with none.
func withFiles(r events.Result) ([]byte, error) {
	files := r.Files
	document := func(n int) ([]byte, error) {
		r.Files = files[:n]
		return json.Marshal(r)
	}
	return document(sort.Search(len(files), func(i int) bool {
		body, _ := document(i + 1)
		return len(body) >= maxBody
	}))
}
