package validate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Values with all options, and with as few as possible.
const (
	everything = `
settings: {grace: 1m10s}
redis: {url: "rediss://redis.acme.example:6380", existingSecret: "123", key: "yes"}
api: {existingSecret: "456", key: "7"}
volume: {existingClaim: "0x1"}
worker:
  terminationGracePeriodSeconds: 85
  credentials: {a: {secret: "1", keys: ["2", "true"]}}
  autoscaling: {type: hpa}
  extraEnv: [{name: A, value: "1"}]
  extraVolumes: [{name: a, emptyDir: {}}]
  extraVolumeMounts: [{name: a, mountPath: /a}]
  podAnnotations: {a: "1"}
  podLabels: {b: "true"}
  nodeSelector: {disk: "1"}
  tolerations: [{operator: Exists}]
  affinity: {nodeAffinity: {}}
  priorityClassName: "1"
receiver: {terminationGracePeriodSeconds: 90, hooks: {h: {secret: "3", keys: ["4"]}}, service: {type: LoadBalancer, port: 443, annotations: {a: "1"}}}
notifier: {terminationGracePeriodSeconds: 85, credentials: {n: {secret: "5", keys: ["6"]}}, pdb: {maxUnavailable: 50%}}
follower: {enabled: true, url: "https://reader.acme.example:8443", existingSecret: "8", key: "9"}
ingress: {enabled: true, className: "1", tlsSecret: "2"}
networkPolicy: {receiverFrom: [{podSelector: {}}], extraEgress: [{ports: [{port: 6380}]}]}
monitoring: {podMonitor: {enabled: true, labels: {a: "1"}}, serviceMonitor: {enabled: true}, rules: {enabled: true}}
extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}, "{apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}-b'}}"]
`
	least = `
redis: {url: "redis://redis"}
worker: {replicas: 1, pdb: {enabled: false}, topologySpread: []}
receiver: {enabled: false}
notifier: {enabled: false}
networkPolicy: {enabled: false}
`
)

// TestChartWithOddValues checks the objects of all options and of none, of two releases in one namespace, and of names that Kubernetes
// refuses for Services.
func TestChartWithOddValues(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, objects []object) {
		t.Helper()
		service := regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
		for _, o := range objects {
			if err := all.check(o); err != nil {
				t.Errorf("%s: %v", o, err)
			}
			if (o.kind() == "Service" || o.kind() == "StatefulSet") && !service.MatchString(o.name()) {
				t.Errorf("%s: not a DNS label that begins with a letter", o)
			}
		}
		for _, problem := range restricted(objects) {
			t.Error(problem)
		}
	}
	for name, values := range map[string]string{"everything": everything, "least": least} {
		t.Run(name, func(t *testing.T) { check(t, chartObjects(t, parseYAML(t, values))) })
	}
	for name, release := range map[string]string{"dots": "lock.step.one", "long": strings.Repeat("a", 42) + "." + strings.Repeat("b", 10)} {
		t.Run(name, func(t *testing.T) { check(t, releaseObjects(t, release, map[string]any{})) })
	}
	long := "release-" + strings.Repeat("a", 40) // a release's name has at most 53 characters
	for name, releases := range map[string][2]string{"two releases": {"one", "two"}, "two long releases": {long + "-one", long + "-two"}} {
		t.Run(name, func(t *testing.T) { checkReleases(t, releases, check) })
	}
	t.Run("digit", func(t *testing.T) {
		if _, err := renderRelease(t, "1st", map[string]any{}); err == nil || !strings.Contains(err.Error(), "set fullnameOverride") {
			t.Errorf("error %v, want one that says what to set", err)
		}
	})
}

// checkReleases checks that two releases in one namespace share no object and select no Pod of the other.
func checkReleases(t *testing.T, names [2]string, check func(*testing.T, []object)) {
	t.Helper()
	one, two := releaseObjects(t, names[0], example(t, "trial")), releaseObjects(t, names[1], example(t, "trial"))
	check(t, slices.Concat(one, two))
	for _, o := range one {
		if slices.ContainsFunc(two, func(other object) bool { return other.String() == o.String() }) {
			t.Errorf("both releases have %s", o)
		}
		for _, selector := range [][]string{{"spec", "selector"}, {"spec", "selector", "matchLabels"}, {"spec", "podSelector", "matchLabels"}} {
			for _, other := range two {
				if pod := podOf(other); pod != nil && matches(labels(at(o, selector...)), labels(at(pod, "metadata", "labels"))) {
					t.Errorf("%s of one release selects Pods of %s of the other", o, other)
				}
			}
		}
	}
}

// find returns the object of a kind and a name.
func find(t *testing.T, objects []object, name string) object {
	t.Helper()
	i := slices.IndexFunc(objects, func(o object) bool { return o.String() == name })
	if i < 0 {
		t.Fatalf("there is no %s in %v", name, objects)
	}
	return objects[i]
}

// A Pod that is added before another is removed would wait for ever for a volume that only one node or Pod may have.
func TestChartReplacesPodsByTheirVolume(t *testing.T) {
	for values, surge := range map[string]float64{
		"{}": 1,
		"{volume: {accessModes: [ReadWriteOnce]}}":                           0,
		"{volume: {accessModes: [ReadWriteOnce, ReadWriteMany]}}":            1,
		"{volume: {accessModes: [ReadWriteOncePod]}, worker: {replicas: 1}}": 0,
		"{volume: {accessModes: [ReadWriteOnce], existingClaim: a-claim}}":   0,
	} {
		strategy := at(find(t, chartObjects(t, parseYAML(t, values)), "Deployment/lockstep-worker"), "spec", "strategy", "rollingUpdate")
		if got, want := fmt.Sprint(at(strategy, "maxSurge"), at(strategy, "maxUnavailable")), fmt.Sprint(surge, 1-surge); got != want {
			t.Errorf("%s: maxSurge and maxUnavailable are %s, want %s", values, got, want)
		}
	}
}

// A process is given the time to drain in any spelling of grace.
func TestChartChecksGrace(t *testing.T) {
	for grace, seconds := range map[string]int{"25s": 25, "1m30s": 90, "1.5m": 90, "0.5h": 1800, "1h1m1s": 3661, "1500ms": 0} {
		values := func(worker int) map[string]any {
			return parseYAML(t, fmt.Sprintf("{settings: {grace: %s}, receiver: {enabled: false}, notifier: {enabled: false}, worker: {terminationGracePeriodSeconds: %d}}", grace, worker))
		}
		if _, err := renderChart(t, values(seconds+15)); err != nil {
			t.Errorf("%s and %d s: %v", grace, seconds+15, err)
		}
		if _, err := renderChart(t, values(seconds+14)); err == nil {
			t.Errorf("%s and %d s are accepted", grace, seconds+14)
		}
	}
}

// Followers may connect to the port of their reader, or to the ports given instead.
func TestChartFollowerPorts(t *testing.T) {
	for values, want := range map[string]string{
		"follower: {enabled: true}": "[443]",
		"follower: {enabled: true, url: 'http://reader.acme.example/lockstep'}":                             "[80]",
		"follower: {enabled: true, url: 'https://reader.acme.example:8443'}":                                "[8443]",
		"follower: {enabled: true, url: 'https://[2001:db8::1]'}":                                           "[443]",
		"{follower: {enabled: true, url: 'http://lockstep.other'}, networkPolicy: {followerPorts: [8080]}}": "[8080]",
	} {
		policy := find(t, chartObjects(t, parseYAML(t, values)), "NetworkPolicy/lockstep-follow")
		var ports []any
		for _, port := range each(each(at(policy, "spec", "egress"))[1]["ports"]) {
			ports = append(ports, port["port"])
		}
		if got := fmt.Sprint(ports); got != want {
			t.Errorf("%s: ports %s, want %s", values, got, want)
		}
	}
}

// The alerts select jobs with lockstep in their name, which a release may lack.
func TestChartNamesJobs(t *testing.T) {
	for name, want := range map[string]any{"my-lockstep": nil, "acme": "app.kubernetes.io/name"} {
		values := parseYAML(t, "{follower: {enabled: true}, monitoring: {podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}}")
		values["fullnameOverride"] = name
		found := 0
		for _, o := range chartObjects(t, values) {
			if strings.HasSuffix(o.kind(), "Monitor") {
				found++
				if got := at(o, "spec", "jobLabel"); got != want {
					t.Errorf("%s: jobLabel %v, want %v", o, got, want)
				}
			}
		}
		if found != 3 {
			t.Errorf("%d monitors, want those of the Pods, of followers and of the receivers", found)
		}
	}
}
