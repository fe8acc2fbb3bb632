package notify

import (
	"encoding/json"
	"sort"
	"strings"

	"lockstep/events"
)

// maxBody is the maximum size of a document, in bytes. Standard Webhooks recommends at most 20 kB.
const maxBody = 20_000

// Document returns the CloudEvents document of a result as apps get it, on one line and shorter than 20,000
// bytes. To fit, it drops files, missing ones, error text, then deliveries.
func Document(r events.Result) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil || len(body) < maxBody {
		return body, err
	}
	if files := r.Files; len(files) > 0 {
		r.Truncated = true
		if body, err = longestFit(len(files), func(n int) events.Result {
			r.Files = files[:n]
			return r
		}); err != nil || len(body) < maxBody {
			return body, err
		}
		r.Files = nil
	}
	if missing := r.Missing; len(missing) > 0 {
		if body, err = longestFit(len(missing), func(n int) events.Result {
			r.Missing = missing[:n]
			return r
		}); err != nil || len(body) < maxBody {
			return body, err
		}
		r.Missing = nil
	}
	if len(r.Error) > 1000 {
		r.Error = strings.ToValidUTF8(r.Error[:1000], "")
	}
	deliveries := r.Deliveries
	return longestFit(len(deliveries), func(n int) events.Result { r.Deliveries = deliveries[:n]; return r })
}

// longestFit returns the longest document within maxBody that has at most n elements, or the one with none if
// none fits.
func longestFit(n int, with func(int) events.Result) (body []byte, err error) {
	fits := sort.Search(n, func(i int) bool {
		document, _ := json.Marshal(with(i + 1))
		return len(document) >= maxBody
	})
	return json.Marshal(with(fits))
}
