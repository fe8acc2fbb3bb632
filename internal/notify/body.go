package notify

import (
	"encoding/json"
	"sort"
	"strings"

	"lockstep/events"
)

// maxBody is what a post has at most, in bytes: receivers need not take more than 20 kB.
const maxBody = 20_000

// bodyOf is the result as its CloudEvents document. One that is too long has fewer files, and says that it is
// truncated; failing that, fewer of the deliveries that it answers, and less of its error.
func bodyOf(r events.Result) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil || len(body) < maxBody {
		return body, err
	}
	if files := r.Files; len(files) > 0 {
		r.Truncated = true
		if body, err = most(len(files), func(n int) events.Result { r.Files = files[:n]; return r }); err != nil || len(body) < maxBody {
			return body, err
		}
		r.Files = nil
	}
	if len(r.Error) > 1000 {
		r.Error = strings.ToValidUTF8(r.Error[:1000], "")
	}
	deliveries := r.Deliveries
	return most(len(deliveries), func(n int) events.Result { r.Deliveries = deliveries[:n]; return r })
}

// most is the longest document that is short enough, of those with 0 to n of something; with 0 when none is.
func most(n int, with func(int) events.Result) (body []byte, err error) {
	fits := sort.Search(n, func(i int) bool { // the first i of which one more would be too many
		document, _ := json.Marshal(with(i + 1))
		return len(document) >= maxBody
	})
	return json.Marshal(with(fits))
}
