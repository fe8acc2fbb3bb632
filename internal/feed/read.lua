-- Read: read the results after a position, in one step with the check that none between is missing.
--
-- KEYS    1 stream of results   2 its epoch
-- ARGV    1 ID of the position's entry; "" for the end of the stream, "-" for the oldest kept entry
--         2 how many entries had been added up to it, -1 if unknown   3 its epoch; "" for any
--         4 a random epoch, stored if there is none   5 maximum number of entries   6 their size in bytes after which no more are read
-- Returns {state, epoch, last, added, removed, {id, payload, ...}}
--         state: "ok" or, if entries after the position are missing, "gone"
--         last: ID of the last entry ever added, "0-0" if there was none
--         added, removed: how many entries were added to the stream and removed from it; -1 if Redis does not count them
--         id, payload: the entries after the position, in order; the payload is "" if the entry has none
-- Refuses with WRONGTYPE if a key is of another type, without changing anything.
local stream, at = KEYS[1], ARGV[1]
local count, most, size = tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[6])

local function precedes(a, b)
  local ams, aseq = string.match(a, '^(%d+)%-(%d+)$')
  local bms, bseq = string.match(b, '^(%d+)%-(%d+)$')
  if ams ~= bms then return tonumber(ams) < tonumber(bms) end
  return tonumber(aseq) < tonumber(bseq)
end

local last, added, removed = '0-0', 0, 0
if redis.call('EXISTS', stream) == 1 then
  local info, flat = {}, redis.call('XINFO', 'STREAM', stream)
  for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
  last = info['last-generated-id']
  if not string.match(last, '^%d+%-%d+$') then last = '0-0' end -- the embedded Redis
  added = tonumber(info['entries-added'] or -1)
  removed = added < 0 and -1 or added - info['length']
end

local epoch = redis.call('GET', KEYS[2])
if not epoch then
  epoch = ARGV[4]
  redis.call('SET', KEYS[2], epoch)
end

local function answer(state, entries)
  return {state, epoch, last, string.format('%.0f', added), string.format('%.0f', removed), entries}
end

if at == '' then return answer('ok', {}) end
local from = '-'
if at ~= '-' then
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  local kept
  if ARGV[3] ~= '' and ARGV[3] ~= epoch or precedes(last, at) then
    kept = false -- of another stream, or Redis has lost its last entries
  elseif at == last then
    kept = true
  elseif first and not precedes(at, first[1]) then
    kept = #redis.call('XRANGE', stream, at, at) == 1 -- a position is an entry, unless Redis has lost it
  else
    kept = count <= added and removed <= count
    if removed < 0 then kept = at == '0-0' end -- not counted: only the start of the stream is known to be one
  end
  if not kept then return answer('gone', {}) end
  from = '(' .. at
end

local entries, bytes = {}, 0
if at ~= last then
  for _, entry in ipairs(redis.call('XRANGE', stream, from, '+', 'COUNT', most)) do
    local payload = ''
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'payload' then payload = entry[2][i + 1] end
    end
    entries[#entries + 1] = entry[1]
    entries[#entries + 1] = payload
    bytes = bytes + #payload
    if bytes >= size then break end
  end
end
return answer('ok', entries)
