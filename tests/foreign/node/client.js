// Runs one scenario with kafkajs: node client.js SCENARIO BOOTSTRAP TOPIC.
// It prints what tests/foreign/test_go_and_node.py asserts on, and exits with 1 and a reason when a check fails.
'use strict'
const assert = require('node:assert')
const { setTimeout: sleep } = require('node:timers/promises')
const { CompressionTypes, Kafka, logLevel } = require('kafkajs')

const [scenario, bootstrap, topic] = process.argv.slice(2)
const kafka = new Kafka({ brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })
// It has the other codecs from packages of their own.
const codecs = { none: 'None', gzip: 'GZIP' }

async function producing({ compression = 'None', acks = -1, idempotent = false }, use) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1, retry: { retries: 50 } })
  await producer.connect()
  await use((messages) => producer.send({ topic, messages, compression: CompressionTypes[compression], acks }))
  await producer.disconnect()
}

// Joins a group and collects what it reads. `assigned` is how many partitions it has.
async function join(groupId) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 200 })
  const member = { values: [], assigned: 0, leave: () => consumer.disconnect() }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    member.assigned = (payload.memberAssignment[topic] || []).length
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => void member.values.push(String(message.value)) })
  return member
}

async function until(holds, what) {
  for (const end = Date.now() + 60000; !holds(); await sleep(20)) assert(Date.now() < end, `${what}: not within 60 s`)
}

const messagesOf = (prefix, count) =>
  Array.from({ length: count }, (_, each) => ({ key: `${each}`, value: `${prefix}-${each}` }))

async function produce() {
  const wanted = []
  for (const [codec, compression] of Object.entries(codecs)) {
    for (const acks of [-1, 1, 0]) {
      const messages = messagesOf(`${'x'.repeat(200)}-${codec}-${acks}`, 20)
      wanted.push(...messages.map((each) => each.value))
      await producing({ compression, acks, idempotent: acks === -1 }, (send) => send(messages))
    }
  }
  const reader = await join(`readers-of-${topic}`)
  await until(() => reader.values.length >= wanted.length, 'all records are read')
  await reader.leave()
  assert.deepStrictEqual(reader.values.sort(), wanted.sort())
  console.log(wanted.length)
}

async function group() {
  const groupId = `group-of-${topic}`
  await producing({}, (send) => send(messagesOf('old', 40)))
  const first = await join(groupId)
  await until(() => first.values.length >= 40, 'the first member reads')
  const second = await join(groupId)
  await until(() => first.assigned === 2 && second.assigned === 2, 'two members share four partitions')
  await first.leave()
  await second.leave()
  await producing({}, (send) => send(messagesOf('new', 40)))
  const third = await join(groupId)
  await until(() => third.values.length >= 40, 'the third member reads')
  await third.leave()
  const all = [...first.values, ...second.values, ...third.values]
  assert(third.values.every((value) => value.startsWith('new')), 'a committed record was read again')
  console.log(new Set(all).size, all.length)
}

async function offsets() {
  const start = 1700000000000
  await producing({}, async (send) => {
    for (const second of [0, 1, 2]) {
      await send([{ partition: 0, value: 'x', timestamp: `${start + 1000 * second}` }])
    }
  })
  const admin = kafka.admin()
  await admin.connect()
  const at = async (found) => (await found).find((each) => each.partition === 0).offset
  const first = await at(admin.fetchTopicOffsetsByTimestamp(topic, start + 500))
  console.log(first, await at(admin.fetchTopicOffsets(topic)))
  await admin.disconnect()
}

async function administer() {
  const admin = kafka.admin()
  await admin.connect()
  const create = (numPartitions) => admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 3 }] })
  assert(await create(3))
  assert(!(await create(3)), 'created twice')
  assert((await admin.listTopics()).includes(topic))
  const described = async () => {
    return (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions
  }
  assert.strictEqual((await described()).length, 3)
  await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
  assert.strictEqual((await described()).length, 5)
  assert.strictEqual((await described())[0].replicas.length, 3)
  await admin.deleteTopics({ topics: [topic] })
  assert(await create(1))
  await producing({}, (send) => send([{ value: 'new' }]))
  console.log((await described()).length)
  await admin.disconnect()
}

// 1,000 numbered records; the test kills the leader when it reads the first line.
async function numbers() {
  await producing({ idempotent: true }, async (send) => {
    for (let number = 0; number < 1000; number += 20) {
      await send(Array.from({ length: 20 }, (_, each) => ({ value: `${number + each}` })))
      if (number === 300) console.log('half')
    }
  })
  console.log('done')
}

const scenarios = {
  produce,
  offsets,
  numbers,
  admin: administer,
  eager: group,
}
scenarios[scenario]().then(
  () => process.exit(0),
  (error) => {
    console.error(error)
    process.exit(1)
  }
)
