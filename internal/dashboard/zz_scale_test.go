package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
)

func TestScale(t *testing.T) {
	if os.Getenv("SCALE") == "" {
		t.Skip()
	}
	d := &desk{t: t, redis: redistest.StartReal(t), log: &lines{}}
	d.client = d.redis.Client()
	ctx := context.Background()
	ns := events.DefaultNamespace
	pipe := d.client.Pipeline()
	flush := func() {
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	for i := range 100_000 {
		repo := fmt.Sprintf("org%d/repo%d", i%500, i)
		pipe.HSet(ctx, string(ns)+"repo:"+repo, "repo", repo, "url", "https://example.org/"+repo, "synced", now.Format(time.RFC3339Nano), "fence", "7",
			"head:refs/heads/main", strings.Repeat("a1", 20), "head:refs/heads/dev", strings.Repeat("b1", 20), "given:refs/heads/main:docs", strings.Repeat("a1", 20))
		pipe.HSet(ctx, ns.Locks()+repo, "fence", i)
		pipe.ZAdd(ctx, ns.Watches()+"index", zz(repo))
		pipe.HSet(ctx, ns.Watches()+"of:"+repo, "docs ", fmt.Sprintf(`{"app":"docs","url":"https://example.org/%s.git","repo":%q}`, repo, repo))
		if i%1000 == 999 {
			flush()
		}
	}
	for i := range 5000 {
		repo := fmt.Sprintf("org%d/repo%d", i%500, i)
		pipe.HSet(ctx, ns.Locks()+repo, "owner", "x", "expires", now.Add(time.Hour).UnixMicro(), "fence", i+1, "since", now.UnixMicro(), "worker", "w", "job", "j", "operation", "sync")
	}
	for w := range 200 {
		doc := "["
		for i := range 25 {
			if i > 0 {
				doc += ","
			}
			doc += fmt.Sprintf(`{"repo":"org%d/repo%d","job":"j","operation":"sync","fence":%d,"took_ms":5}`, (w*25+i)%500, w*25+i, w*25+i+1)
		}
		pipe.HSet(ctx, ns.Working(), fmt.Sprint("w", w), fmt.Sprintf("%d %s]", now.Add(10*time.Minute).UnixMilli(), doc))
	}
	flush()
	for i := range 50_000 {
		_ = i
		pipe.XAdd(ctx, zx(ns.Dead(), map[string]any{"reason": "failed", "error": "the remote answered 503", "attempts": "3", "stream": ns.Changes(), "group": "workers", "consumer": "w1", "entry": "1-0", "at": now.UnixMilli(),
			"original:_watermill_message_uuid": "u", "original:payload": fmt.Sprintf(`{"specversion":"1.0","id":"j%d","source":"/x","type":"lockstep.change.pushed.v1","subject":"org1/repo%d","data":{"repo":"org1/repo%d","url":"https://example.org/org1/repo%d","app":"docs"}}`, i, i, i, i)}))
		if i%1000 == 999 {
			flush()
		}
	}
	d.open(func(c *Config) { c.Locks = server.ShareLocks(c.Locks) })
	info := func() (n int64, cpu float64) {
		text := d.client.Info(ctx, "stats", "cpu").Val()
		find := func(name string) float64 {
			f, _ := strconv.ParseFloat(regexp.MustCompile(name+`:([0-9.]+)`).FindStringSubmatch(text)[1], 64)
			return f
		}
		return int64(find("total_commands_processed")), find("used_cpu_sys") + find("used_cpu_user")
	}
	for _, p := range []string{"/", "/dashboard/leases", "/dashboard/dead", "/dashboard/dead?reason=absent", "/dashboard/dead?repo=org1/absent", "/dashboard/repos", "/dashboard/repos?prefix=org7/", "/dashboard/repos?prefix=none", "/dashboard/watches", "/dashboard/watches?app=none", "/dashboard/watches?prefix=org7/", "/dashboard/repo?repo=org1/repo1"} {
		began := time.Now()
		n0, c0 := info()
		resp, text := d.visit("GET", p, nil, bearer)
		n1, c1 := info()
		msg := regexp.MustCompile(`(?s)class="empty">.*?</p>`).FindString(text)
		t.Logf("%-40s %d %8d bytes %6d rows %v; redis %d commands, %.3f s cpu; %s", p, resp.StatusCode, len(text), strings.Count(text, "<tr"), time.Since(began).Round(time.Millisecond), n1-n0, c1-c0, msg)
	}
	for _, q := range []string{"page=overview", "page=leases", "page=dead", "page=dead&reason=absent", "page=repos", "page=repos&prefix=none", "page=watches", "page=watches&app=none", "page=repo&repo=org1/repo1"} {
		f := d.follow(q, bearer)
		time.Sleep(2 * time.Second)
		n0, c0 := info()
		time.Sleep(5 * time.Second)
		n1, c1 := info()
		f.cancel()
		f.ended()
		t.Logf("%-40s %.1f commands/s, redis %.1f %% of a core", q, float64(n1-n0)/5, (c1-c0)/5*100)
	}
	// many distinct queries by somebody who goes at once
	var fs []*followed
	for i := range 60 {
		fs = append(fs, d.follow("page=repos&prefix="+url.QueryEscape(fmt.Sprint("none", i)), nil))
	}
	time.Sleep(time.Second)
	n0, c0 := info()
	began := time.Now()
	resp, _ := d.visit("GET", "/dashboard/repos", nil, nil)
	t.Logf("a page meanwhile: %d in %v", resp.StatusCode, time.Since(began))
	time.Sleep(4 * time.Second)
	n1, c1 := info()
	t.Logf("60 distinct prefixes: %.1f commands/s, redis %.1f %% of a core", float64(n1-n0)/time.Since(began).Seconds(), (c1-c0)/time.Since(began).Seconds()*100)
	for _, f := range fs {
		f.cancel()
	}
}
