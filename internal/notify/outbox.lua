-- outbox.lua opens the scripts that change outboxes. An app has a box for each repository that it has
-- notifications of: they leave it in the order in which they came, one at a time.
--
-- KEYS  1 apps (zset: app to when the first of its boxes is due, ms)   2 counts (hash: app to its items)
--       3 sizes (hash: app to their bytes)   4 tries (hash: box to the failed attempts of its head)
--       5 claims (hash: box to the last claim of its head, until that is settled)   6 dead letters (stream)
-- ARGV  1 prefix of the keys below   2 about how many dead letters are kept
--
-- Below the prefix, with the hash tag that all keys share:
--       due:{app}         zset: repo to when its head may be sent, ms; of one that is being sent, when its claim ends
--       heads:{app}       zset: repo to the number of its head
--       box:{app} {repo}  list of items: each its number, a space, and a JSON object
--       unwatched:{app} {repo}  there for a while once the box's watch is found gone
--       moved:{repo}      key of the repository that this one is since a rename
-- An app's name has no space in it, nor has a repo's key.
--
-- Refuses with WRONGTYPE when there is something else at the dead letters; nothing changed.

local apps, counts, sizes, tries, claims, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local prefix, letters = ARGV[1], ARGV[2]

local kind = redis.call('TYPE', dead)['ok']
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE the dead letters are no stream; nothing was changed')
end

local function number(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function due_of(app) return prefix .. 'due:' .. app end
local function heads_of(app) return prefix .. 'heads:' .. app end
local function name_of(app, repo) return app .. ' ' .. repo end
local function box_of(app, repo) return prefix .. 'box:' .. name_of(app, repo) end

local function head_of(app, repo)
  local head = redis.call('LINDEX', box_of(app, repo), 0)
  if not head then return end
  local n, item = string.match(head, '^(%d+) (.*)$')
  return n or '0', item or head
end

-- index notes when the first of an app's boxes is due.
local function index(app)
  local first = redis.call('ZRANGE', due_of(app), 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('ZADD', apps, number(tonumber(first[2])), app)
  else
    redis.call('ZREM', apps, app)
  end
end

local function letter(entry, reason, err, attempts, fields)
  local l = {'reason', reason, 'error', err, 'attempts', attempts, 'stream', string.sub(prefix, 1, -2), 'group', 'notify',
    'entry', entry, 'consumer', 'notifier', 'at', number(now)}
  for i = 1, math.min(#fields, 2000), 2 do
    l[#l + 1] = 'original:' .. fields[i]
    l[#l + 1] = fields[i + 1]
  end
  if #fields > 2000 then
    l[#l + 1] = 'truncated'
    l[#l + 1] = string.format('%.0f of %.0f fields', 1000, #fields / 2)
  end
  redis.call('XADD', dead, 'MAXLEN', '~', letters, '*', unpack(l))
end

-- bury makes a dead letter of a box's head. Its fields are what puts it back, and read as a result. Of a head that is
-- no item, as this program writes them, it keeps the text.
local function bury(app, repo, reason, err, attempts)
  local _, text = head_of(app, repo)
  local ok, item = pcall(cjson.decode, text)
  if not ok or type(item) ~= 'table' or type(item.body) ~= 'string' then item = {body = text, app = app, repo = repo} end
  local function part(name) return type(item[name]) == 'string' and item[name] or '' end
  local fields = {'_watermill_message_uuid', part('id'), 'payload', part('body'),
    'type', part('type'), 'app', part('app'), 'repo', part('repo'), 'ref', part('ref'), 'entry', part('entry')}
  for _, name in ipairs({'traceparent', 'tracestate'}) do
    if part(name) ~= '' then
      fields[#fields + 1] = name
      fields[#fields + 1] = part(name)
    end
  end
  letter(part('entry'), reason, err, attempts, fields)
end

-- forget takes away what is noted of a box without a head, and of its app when no other box is left.
local function forget(app, repo)
  redis.call('ZREM', heads_of(app), repo)
  redis.call('ZREM', due_of(app), repo)
  redis.call('HDEL', tries, name_of(app, repo))
  redis.call('HDEL', claims, name_of(app, repo))
  if redis.call('EXISTS', heads_of(app)) == 0 then
    redis.call('HDEL', counts, app)
    redis.call('HDEL', sizes, app)
  end
end

-- pop takes a box's head away. The next is due at the given moment.
local function pop(app, repo, at)
  local _, gone = head_of(app, repo)
  redis.call('LPOP', box_of(app, repo))
  redis.call('HDEL', tries, name_of(app, repo))
  redis.call('HINCRBY', counts, app, -1)
  redis.call('HINCRBY', sizes, app, -#gone)
  local following = head_of(app, repo)
  if following then
    redis.call('ZADD', heads_of(app), following, repo)
    redis.call('ZADD', due_of(app), at, repo)
  else
    forget(app, repo)
  end
end

