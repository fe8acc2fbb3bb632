package egress

import (
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	at := func(d time.Duration) string { return now.Add(d).UTC().Format(http.TimeFormat) }
	for name, tc := range map[string]struct {
		header map[string]string
		want   time.Duration
	}{
		"none":              {nil, 0},
		"seconds":           {map[string]string{"Retry-After": "60"}, time.Minute},
		"a fraction":        {map[string]string{"Retry-After": "1.5"}, 1500 * time.Millisecond},
		"a date":            {map[string]string{"Retry-After": at(time.Minute)}, time.Minute},
		"the past":          {map[string]string{"Retry-After": at(-time.Minute)}, 0},
		"its own clock":     {map[string]string{"Retry-After": at(time.Hour), "Date": at(59 * time.Minute)}, time.Minute},
		"too long":          {map[string]string{"Retry-After": "99999999999999999999"}, 24 * time.Hour},
		"an exponent":       {map[string]string{"Retry-After": "1e9"}, 0},
		"two points":        {map[string]string{"Retry-After": "1.2.3"}, 0},
		"reset in seconds":  {map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": "12"}, 12 * time.Second},
		"negative":          {map[string]string{"Retry-After": "-1"}, 0},
		"not a number":      {map[string]string{"Retry-After": "NaN"}, 0},
		"reset":             {map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000060"}, time.Minute},
		"reset long ago":    {map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000000"}, 0},
		"some remain":       {map[string]string{"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "1800000060"}, 0},
		"both":              {map[string]string{"Retry-After": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000060"}, 5 * time.Second},
		"reset, its clock":  {map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000060", "Date": at(50 * time.Second)}, 10 * time.Second},
		"neither of both":   {map[string]string{"Retry-After": "soon"}, 0},
		"unreadable, reset": {map[string]string{"Retry-After": "soon", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000060"}, time.Minute},
	} {
		header := http.Header{}
		for key, value := range tc.header {
			header.Set(key, value)
		}
		if got := ReadRateLimit(header, now).Wait(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
